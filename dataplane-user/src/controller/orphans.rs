//! NodeFlags whose machine is gone. Pure.

use std::{collections::BTreeMap, time::Duration};

use super::{flags::STAYS, wire::Flag};

/// A machine: the name of its Node, and the Node's UID.
pub(super) type Machine = (String, String);

/// Since when each flag's Node has been gone, or has been another machine. By a clock of this process that nobody sets: a server's clock that is wrong
/// deletes nothing.
#[derive(Debug, Default)]
pub(super) struct Orphans(BTreeMap<String, (Machine, Duration)>);

impl Orphans {
    /// Looks at all flags. `uid`: the UID of the Node of a name, if there is one.
    pub(super) fn look<'a>(
        &mut self,
        flags: &BTreeMap<String, Flag>,
        uid: impl Fn(&str) -> Option<&'a str>,
        now: Duration,
    ) {
        let mut found = BTreeMap::new();
        for (name, flag) in flags {
            let Some(machine) = machine(flag) else { continue };
            if uid(&machine.0) == Some(machine.1.as_str()) || flag.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let before = self.0.get(name).filter(|(before, _)| *before == machine);
            let since = before.map_or(now, |(_, since)| *since);
            found.insert(name.clone(), (machine, since));
        }
        self.0 = found;
    }

    /// The machine of a flag that is to be deleted, since it has been gone for so long.
    pub(super) fn due(&self, name: &str, now: Duration) -> Option<&Machine> {
        let (machine, since) = self.0.get(name)?;
        (now.saturating_sub(*since) >= STAYS).then_some(machine)
    }
}

/// The machine that a flag is for.
fn machine(flag: &Flag) -> Option<Machine> {
    let field = |name: &str| Some(flag.spec.get(name)?.as_str()?.to_owned());
    Some((field("node")?, field("uid")?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flags(uid: &str) -> BTreeMap<String, Flag> {
        let flag = json!({"metadata": {"name": "one"}, "spec": {"node": "a", "uid": uid}});
        [("one".to_owned(), serde_json::from_value(flag).unwrap())].into()
    }

    #[test]
    fn a_flag_goes_once_its_machine_has_been_gone_for_an_hour() {
        let mut orphans = Orphans::default();
        let second = Duration::from_secs;
        let mut is_due = |flags: &BTreeMap<String, Flag>, there: Option<&'static str>, now: Duration| {
            orphans.look(flags, |_| there, now);
            orphans.due("one", now).is_some()
        };
        let flag = flags("old");
        assert!(!is_due(&flag, Some("old"), second(0)));
        assert!(!is_due(&flag, Some("old"), second(9_000)), "its machine is there");
        assert!(!is_due(&flag, None, second(10_000)));
        // It stays gone where another machine gets the name.
        assert!(!is_due(&flag, Some("new"), second(13_599)));
        assert!(is_due(&flag, Some("new"), second(13_600)));
        // It was only away: a list that came late, for example.
        assert!(!is_due(&flag, Some("old"), second(13_601)));
        assert!(!is_due(&flag, None, second(13_602)));
        // A flag that is changed to another machine that is gone waits anew.
        assert!(!is_due(&flags("older"), None, second(17_202)));
        assert!(is_due(&flags("older"), None, second(20_802)));
    }
}
