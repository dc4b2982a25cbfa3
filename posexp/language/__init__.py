"""Language models as a room of their own: text, tokens, task, and what a trained one is asked.

Nothing else in posexp imports it. Its task and its commands are found by the entry points of the
package, as those of anybody's plugin are, and it uses what every plugin may use.
"""
