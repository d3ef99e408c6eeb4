"""Studies, which train several arms with several seeds as ordinary runs, and their results pages."""
