"""Files, locks and images: what every room that writes uses."""
