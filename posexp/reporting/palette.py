"""The colors of all figures: Okabe and Ito's, which all readers tell apart, and two more.

Gray is for what things are compared with.
"""

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, VIOLET, BROWN = "#56B4E9", "#D55E00", "#8E63C0", "#A0674F"
COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, VIOLET, BROWN)
GRAY = "#888888"
