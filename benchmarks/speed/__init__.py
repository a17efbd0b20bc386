"""Speed: ratios in one interleaved run, medians, compile time apart."""
