"""Diagnostics as a wing: what one is, those of posexp, and the command of lengths.

Nothing else in posexp imports it. Its tasks and its command are found by the entry points of the
package, as those of anybody's plugin are, and it uses what every plugin may use.
"""
