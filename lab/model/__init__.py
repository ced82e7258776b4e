"""A small transformer whose prefill and decode are engines of their own: a transfer is judged by what is said after it."""
