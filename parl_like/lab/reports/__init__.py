"""Reports on finished runs.

`plots` learning curves · `report` groups of runs side by side · `marks` scores over seeds.
"""
