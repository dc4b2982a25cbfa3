"""The leaderboard: a frozen suite of tasks, a row for each encoding, and who may enter one."""
