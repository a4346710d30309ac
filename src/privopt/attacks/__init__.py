"""Attacks on what is claimed: how much an observer really learns, as lower bounds on epsilon that hold with confidence.

An attack can refute a claim, never confirm it. The data are made up here, so nothing private is read.
"""
