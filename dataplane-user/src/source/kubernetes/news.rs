//! What the watches of all kinds say together: their changes, until when these are confirmed, and which of them do not answer.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};

use super::{
    super::{News, Teller},
    machines::Machines,
};
use crate::{cluster::Change, enforce::Now, flags::now};

/// How many changes wait at most between a watch and the end that takes them. They are taken without delay.
pub(super) const WAITING: usize = 64;

/// How often is looked whether the API server was heard.
const LOOK: Duration = Duration::from_secs(1);

/// A kind of objects that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Members,
    Services,
    Slices,
    Flags,
    Settings,
}

impl Kind {
    /// Logs that a watch has failed.
    pub(super) fn log_away(self, why: &str) {
        tracing::warn!(
            event = "api-server-away",
            kind = %self,
            error = why,
            "a watch of the API server failed, and is begun anew; what was known last holds"
        );
    }

    /// Logs that a watch that had failed goes on.
    pub(super) fn log_answers(self) {
        tracing::info!(event = "api-server-answers", kind = %self, "a watch of the API server goes on");
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Members => "members",
            Self::Services => "Services",
            Self::Slices => "slices",
            Self::Flags => "NodeFlags",
            Self::Settings => "NodefenceSettings",
        })
    }
}

/// When the API server was last heard on the connections of one client. Bookmarks count, which it sends about once a minute on a watch
/// without changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<watch::Sender<Option<Now>>>);

impl Heard {
    /// The API server was heard just now.
    pub(super) fn note(&self) {
        self.0.send_replace(Some(now()));
    }

    pub(super) fn last(&self) -> Option<Now> {
        *self.0.borrow()
    }
}

/// What a watch tells.
#[derive(Debug)]
pub(super) enum Told<C> {
    /// A list has begun: until its end nothing is known of what changed meanwhile.
    Listing,
    /// A list, with what could not be read of it, or the change of an object. They are taken together.
    Changes(Vec<C>),
    /// The watch has failed, and is begun anew.
    Failed(String),
    /// The same, since the API server does not know the kind.
    NoKind(String),
}

/// A watch of one kind.
#[derive(Debug)]
pub(super) struct Watch {
    kind: Kind,
    heard: Heard,
    /// Its list has come to its end.
    pub(super) is_listed: bool,
    /// Why it failed, and when, until the API server is heard again.
    failed: Option<(String, Now)>,
}

impl Watch {
    pub(super) const fn new(kind: Kind, heard: Heard) -> Self {
        Self { kind, heard, is_listed: false, failed: None }
    }

    /// Each failure is logged once, however often the watch is begun in vain.
    pub(super) fn fails(&mut self, why: String, log: impl Fn(Kind, &str)) {
        if self.failed.is_none() {
            log(self.kind, &why);
        }
        self.failed = Some((why, now()));
    }

    /// Takes what the watch tells. Returns changes; `none` of them where the API server has no such kind, and so no object of it.
    pub(super) fn take<C>(&mut self, told: Told<C>, none: C) -> Vec<C> {
        match told {
            Told::Listing => self.is_listed = false,
            Told::Changes(changes) => {
                self.is_listed = true;
                self.answers();
                return changes;
            }
            Told::Failed(why) => self.fails(why, Kind::log_away),
            Told::NoKind(why) => {
                self.fails(why, |kind, why| {
                    tracing::warn!(
                        event = "kind-unknown",
                        kind = %kind,
                        error = why,
                        "the API server does not know the kind: there are no such objects (`nodefence crds --apply` defines it)"
                    );
                });
                return vec![none];
            }
        }
        Vec::new()
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(super) fn answers(&mut self) {
        if self.failed.take().is_some() {
            self.kind.log_answers();
        }
    }

    /// A watch without changes is known to live by what is heard on its connection.
    pub(super) fn look(&mut self) {
        // A list that does not come to its end is no answer.
        let failed = self.failed.as_ref().filter(|_| self.is_listed).map(|(_, at)| at.mono);
        if failed.zip(self.heard.last()).is_some_and(|(failed, heard)| heard.mono > failed) {
            self.answers();
        }
    }

    /// When it was last heard, if all that it had until then was told.
    fn confirmed(&self) -> Option<Now> {
        self.heard.last().filter(|_| self.is_listed && self.failed.is_none())
    }

    pub(super) fn away(&self) -> Option<String> {
        let (why, _) = self.failed.as_ref()?;
        Some(format!("the watch of {}: {why}", self.kind))
    }
}

/// The owner of what is known of all watches.
pub(super) struct Outlook {
    teller: Teller,
    watches: [Watch; 3],
    /// Which machine each member is, for whoever compares flags with them.
    machines: watch::Sender<Machines>,
    reported: News,
}

impl Outlook {
    pub(super) fn new(teller: Teller, heard: [Heard; 3], machines: watch::Sender<Machines>) -> Self {
        let [members, services, slices] = heard;
        let watches = [
            Watch::new(Kind::Members, members),
            Watch::new(Kind::Services, services),
            Watch::new(Kind::Slices, slices),
        ];
        Self { teller, watches, machines, reported: News::default() }
    }

    /// Takes what the watches tell, for as long as one of them lives.
    pub(super) async fn take(mut self, mut told: mpsc::Receiver<(Kind, Told<Change>)>) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                next = told.recv() => match next {
                    Some((kind, Told::Listing)) => self.watches[kind as usize].is_listed = false,
                    Some((kind, Told::Changes(changes))) => self.changed(kind, changes),
                    Some((kind, Told::Failed(why) | Told::NoKind(why))) => self.failed(kind, why),
                    None => return,
                },
                _ = look.tick() => self.heard(),
            }
            self.report();
        }
    }

    fn changed(&mut self, kind: Kind, changes: Vec<Change>) {
        self.watches[kind as usize].is_listed |= changes.first().is_some_and(Change::is_list);
        if kind == Kind::Members {
            self.machines.send_if_modified(|machines| machines.follow(&changes));
        }
        self.teller.tell_all(changes);
        self.watches[kind as usize].answers();
    }

    fn failed(&mut self, kind: Kind, why: String) {
        self.watches[kind as usize].fails(why, Kind::log_away);
    }

    fn heard(&mut self) {
        self.watches.iter_mut().for_each(Watch::look);
    }

    fn report(&mut self) {
        let news = News { confirmed: self.confirmed(), away: self.away() };
        if news != self.reported {
            self.reported = news.clone();
            self.teller.report(news);
        }
    }

    /// When each watch was heard last, of these times the first. What the API server had until then was told.
    fn confirmed(&self) -> Option<Now> {
        let times: Option<Vec<Now>> = self.watches.iter().map(Watch::confirmed).collect();
        // While a watch fails, the last confirmation holds.
        times.and_then(|times| times.into_iter().min_by_key(|at| at.mono)).or(self.reported.confirmed)
    }

    fn away(&self) -> Option<String> {
        self.watches.iter().find_map(Watch::away)
    }
}

/// A list of objects as changes: the objects that could be read, and then those that could not.
pub(super) fn listed<C>(list: C, left_out: impl Iterator<Item = C>) -> Told<C> {
    Told::Changes(std::iter::once(list).chain(left_out).collect())
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{Changes, changes},
        *,
    };

    fn outlook() -> (Outlook, [Heard; 3], Changes) {
        let (teller, changes) = changes();
        let heard = [Heard::default(), Heard::default(), Heard::default()];
        let (machines, _) = watch::channel(Machines::default());
        (Outlook::new(teller, heard.clone(), machines), heard, changes)
    }

    fn list(outlook: &mut Outlook) {
        outlook.changed(Kind::Members, vec![Change::Nodes(Vec::new())]);
        outlook.changed(Kind::Services, vec![Change::Services(Vec::new())]);
        outlook.changed(Kind::Slices, vec![Change::Slices(Vec::new())]);
    }

    #[test]
    fn what_all_watches_heard_is_confirmed() {
        let (mut outlook, heard, _changes) = outlook();
        heard.iter().for_each(Heard::note);
        assert_eq!(outlook.confirmed(), None, "no list has come");
        list(&mut outlook);
        assert_eq!(outlook.confirmed(), heard[0].last());
        outlook.report();
        heard[0].note();
        assert_eq!(outlook.confirmed(), heard[1].last(), "the watch that was silent for longest counts");
        // While a new list has not come to its end, nothing is confirmed.
        outlook.report();
        let before = outlook.reported.confirmed;
        outlook.watches[1].is_listed = false;
        heard.iter().for_each(Heard::note);
        assert_eq!(outlook.confirmed(), before);
        outlook.watches[1].is_listed = true;
        assert_eq!(outlook.confirmed(), heard[0].last());
        outlook.report();
        // Nor while one watch fails.
        let before = outlook.reported.confirmed;
        outlook.failed(Kind::Services, "refused".to_owned());
        heard[0].note();
        heard[2].note();
        assert_eq!(outlook.confirmed(), before);
    }

    #[test]
    fn a_watch_that_failed_answers_once_it_is_heard() {
        let (mut outlook, heard, changes) = outlook();
        heard.iter().for_each(Heard::note);
        list(&mut outlook);
        outlook.failed(Kind::Slices, "refused".to_owned());
        outlook.heard();
        outlook.report();
        let (_, news) = changes.take();
        assert_eq!(news.expect("news").away.as_deref(), Some("the watch of slices: refused"));
        // A new list has begun, and does not come to its end.
        outlook.watches[2].is_listed = false;
        heard[2].note();
        outlook.heard();
        outlook.report();
        assert_eq!(outlook.away().as_deref(), Some("the watch of slices: refused"));
        outlook.watches[2].is_listed = true;
        outlook.heard();
        outlook.report();
        assert_eq!(changes.take().1.expect("news").away, None);
        // Changes show the same.
        outlook.failed(Kind::Slices, "refused".to_owned());
        outlook.changed(Kind::Slices, Vec::new());
        assert_eq!(outlook.away(), None);
    }
}
