use std::{fmt, str::FromStr};

use thiserror::Error;

/// The kernel's room for a name, its closing zero included (`IP_VS_SCHEDNAME_MAXLEN`, `IP_VS_PENAME_MAXLEN`).
const ROOM: usize = 16;

/// Name of a scheduler (`rr`, `mh`; `none` where a service has lost its own) or of a persistence engine (`sip`): 1 to 15 bytes of
/// printable ASCII.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    bytes: [u8; ROOM],
}

/// A text that is no [`Name`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the name of a scheduler or persistence engine is 1 to 15 printable ASCII characters without spaces")]
pub struct BadName;

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(ROOM);
        std::str::from_utf8(&self.bytes[..end]).unwrap_or_default()
    }

    /// From a text attribute, with or without its closing zero.
    pub fn from_attribute(value: &[u8]) -> Option<Self> {
        std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()?.parse().ok()
    }
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        if text.is_empty() || text.len() >= ROOM || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadName);
        }
        let mut bytes = [0; ROOM];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
