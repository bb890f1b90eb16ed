"""The paper's tables and figures, from settings files in this folder: cells, choices, tables, figures, the page."""
