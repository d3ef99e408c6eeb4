"""Studies: arms × seeds as ordinary runs, and pages of their results."""
