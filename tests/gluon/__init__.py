"""Tests of Gluon."""
