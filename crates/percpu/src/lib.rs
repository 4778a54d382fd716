//! Per-CPU words, restartable sequences and asymmetric fences.
