"""The site: Sphinx reads the Markdown of this folder (`make site`). Nothing is fetched while it builds or is read."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

project = "volplane"
author = "The volplane authors"
html_title = "volplane"
smartquotes = False

extensions = ["myst_parser", "tools.reference"]
exclude_patterns = ["README.md"]  # index.md includes it
myst_heading_anchors = 4  # links name headings as GitHub does
nitpicky = True

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
