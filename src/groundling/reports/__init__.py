"""Reports: pages, plots, GIFs, model cards, and the browser interface."""
