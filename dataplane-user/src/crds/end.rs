//! The end of a flag or a pause, as it is read.

use jiff::Timestamp;
use serde::{Deserialize as _, Deserializer, de::Error as _};

/// Reads the field `until`. The API server takes times that no [`Timestamp`] can have, such as the last day of the year 9999 and an offset of 99 hours.
pub(super) fn until<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|error| {
        D::Error::custom(format!(
            "until: `{text}`: expected a time before the year 9999 as in 2026-06-01T12:00:00Z ({error})"
        ))
    })
}
