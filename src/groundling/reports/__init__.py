"""Reports: pages, plots, GIFs, model cards, rating forms, and the browser interface."""
