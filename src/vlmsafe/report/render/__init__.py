"""From tables and charts to HTML, SVG, PNG, PDF, CSV and the terminal."""
