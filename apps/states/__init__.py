"""What the pages show, as ``param`` classes without a Panel import: scripts and tests drive them as the browser does."""
