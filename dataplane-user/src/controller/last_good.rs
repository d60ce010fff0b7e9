//! The last settings that agents can read. Pure.

use serde_json::Value;

use super::wire::Settings;
use crate::enforce::SharedSettings;

/// The content that agents read last. Null, which is all defaults, before any could be read, and where there are no settings.
#[derive(Debug, Default)]
pub(super) struct LastGood(Value);

impl LastGood {
    /// What holds at agents now. Settings that cannot be read change nothing there. `read`: what agents make of a content; times go on, so it is asked
    /// again for the same content. `None` where not even the defaults can be read.
    pub(super) fn read(
        &mut self,
        settings: Option<&Settings>,
        read: impl Fn(&Value) -> Result<SharedSettings, String>,
    ) -> Option<SharedSettings> {
        let newest = settings.map_or(&Value::Null, |settings| &settings.spec);
        if let Ok(settings) = read(newest) {
            if self.0 != *newest {
                self.0.clone_from(newest);
            }
            return Some(settings);
        }
        read(&self.0).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        enforce::{Auto, Share},
        flags::now,
        plan::Mode,
        source::kubernetes::{ServerClock, shared_settings},
    };

    fn settings(spec: Value) -> Settings {
        Settings { spec, ..Settings::default() }
    }

    #[test]
    fn settings_that_cannot_be_read_change_nothing() {
        let mut last_good = LastGood::default();
        let mut read = |settings: Option<Settings>| {
            let clock = ServerClock::default();
            let found =
                last_good.read(settings.as_ref(), |spec| shared_settings(spec, &clock, now())).unwrap();
            (found.mode, found.auto, found.limit)
        };
        let defaults = (Mode::Observe, Auto::Observe, Share::default());
        let good = (Mode::Enforce, Auto::Observe, Share { part: 2, of: 3 });
        let unreadable = || Some(settings(json!({"mode": "enforce", "limit": "4294967296/3"})));
        assert_eq!(read(unreadable()), defaults, "none could be read before");
        assert_eq!(read(Some(settings(json!({"mode": "enforce", "limit": "2/3"})))), good);
        assert_eq!(read(unreadable()), good);
        assert_eq!(read(None), defaults, "they are gone");
        assert_eq!(read(unreadable()), defaults);
    }
}
