use std::fmt::Display;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::error::{At, Problem};

/// A value and where it stands. Smaller than [`Spanned`], which also holds where an alias was defined and both spans: a large
/// file has several hundred thousand of them at a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Spanned<T>", bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct Placed<T = String> {
    pub(super) value: T,
    pub(super) at: Place,
}

/// A place in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// From 1.
    pub(super) line: u32,
    column: u32,
}

impl<T> From<Spanned<T>> for Placed<T> {
    fn from(spanned: Spanned<T>) -> Self {
        let at = spanned.referenced;
        // The reader itself counts in 32 bits.
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self { value: spanned.value, at: Place { line: narrow(at.line()), column: narrow(at.column()) } }
    }
}

impl Place {
    /// What stands here is refused.
    pub(super) fn refused(self, field: String, message: impl Display) -> Problem {
        Problem::Invalid {
            at: At { line: self.line.into(), column: self.column.into(), field },
            message: message.to_string(),
        }
    }
}
