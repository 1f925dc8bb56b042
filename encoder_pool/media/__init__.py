"""From a caller's bytes to pixels and samples: sources, formats, guarded decoders and resizing rules."""
