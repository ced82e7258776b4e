"""Faults in real processes, real memory and real networks, one scenario each, with what must hold during and after them."""
