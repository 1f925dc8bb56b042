"""A stock tower's blocks with fewer and faster launches; everything around the blocks stays stock."""
