"""A judge of results that anybody has measured: is a gain real, and what would tell?"""
