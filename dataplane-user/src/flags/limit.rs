//! How many flags are too many.

/// Whether so many flagged nodes may be more than the rest can make up for: more than a third.
pub const fn too_many(flagged: usize, all: usize) -> bool {
    flagged * 3 > all
}
