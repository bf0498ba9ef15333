"""Tests of one session's verbs, without pytest around them."""
