"""workbench: are these trained networks the same solution, up to the symmetries of their architecture?"""
