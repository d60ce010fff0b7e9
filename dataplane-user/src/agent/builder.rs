//! The thread that works out what follows from a view. It does all work that grows with the view. It owns the places of nodes, and
//! frees views that nobody reads any more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    beat::Beat,
    inbox::Inbox,
    left_out,
    slot::Slot,
    threads::{Crew, Priority},
};
use crate::{
    cluster::{ClusterView, NodeName},
    enforce::{Epoch, Input, NewClaim, NewView, Now},
    plan::{Answer, Full, Indices, Mode, Policy},
    proxy,
};

/// How often the thread looks for views that nobody reads any more, where there are any.
const SWEEP: Duration = Duration::from_secs(1);
/// Views are at least this far apart: of those that come sooner the last one counts.
pub(super) const APART: Duration = Duration::from_millis(100);
/// How often the thread wakes up with nothing to do.
const IDLE: Duration = Duration::from_secs(3600);

/// The sender for whether a view is taken.
type Taken = oneshot::Sender<Result<(), Full>>;

/// Work that waits for the thread.
#[derive(Default)]
pub(super) struct BuildWork {
    /// A view, when its source was read, and who waits to hear whether it is taken.
    view: Option<(Arc<ClusterView>, Now, Taken)>,
    /// How kube-proxy forwards now.
    mode: Option<Option<proxy::Mode>>,
    /// When the source last confirmed the view that it gave last.
    confirmed: Option<Now>,
    /// The agent ends, or is turned off.
    end: bool,
}

impl BuildWork {
    fn is_something(&self) -> bool {
        self.view.is_some() || self.mode.is_some() || self.confirmed.is_some() || self.end
    }
}

/// The end by which work reaches the thread.
#[derive(Default)]
pub(super) struct Builds(Slot<BuildWork>);

impl Builds {
    /// Hands over a view whose source was read at `read`. The receiver learns whether the view is taken, once that is worked out. It is
    /// closed where a newer view replaces this one before that.
    pub(super) fn deliver(&self, view: Arc<ClusterView>, read: Now) -> oneshot::Receiver<Result<(), Full>> {
        let (taken, receiver) = oneshot::channel();
        self.0.post(|work| work.view = Some((view, read, taken)));
        receiver
    }

    /// The source confirms the view that was delivered last and taken.
    pub(super) fn confirm(&self, at: Now) {
        self.0.post(|work| work.confirmed = Some(at));
    }

    /// Has the thread end.
    pub(super) fn end(&self) {
        self.0.post(|work| work.end = true);
    }

    /// kube-proxy forwards in this mode from now on.
    pub(super) fn set_mode(&self, mode: Option<proxy::Mode>) {
        self.0.post(|work| work.mode = Some(mode));
    }
}

/// Works out what follows from views.
pub(super) struct Builder {
    own: NodeName,
    mode: Mode,
    answer: Answer,
    proxy: Option<proxy::Mode>,
    indices: Indices,
    /// Nodes of the last view have no place yet. Nodes that left with this view, or with others that are not written either, still
    /// have all other places.
    places_wait: bool,
    last: Option<Arc<NewView>>,
    /// Every view that was delivered and that others may still read. The last reference must be dropped here, not by a thread that
    /// packets wait for.
    bin: Vec<Arc<NewView>>,
}

impl Builder {
    /// `indices`: what the pinned maps say of places.
    pub(super) fn new(policy: &Policy<'_>, proxy: Option<proxy::Mode>, indices: Indices) -> Self {
        Self {
            own: policy.own_node.into(),
            mode: policy.mode,
            answer: policy.answer,
            proxy,
            indices,
            places_wait: false,
            last: None,
            bin: Vec::new(),
        }
    }

    /// As [`Self::take_of`], of a view that was just read.
    #[cfg(test)]
    pub(super) fn take(&mut self, view: Arc<ClusterView>, written: Epoch) -> Result<Arc<NewView>, Full> {
        self.take_of(view, crate::flags::now(), written)
    }

    /// Takes a view whose source confirmed it at `read`. Nothing is changed where it has more nodes than there are places. `written`: the view whose tables
    /// were written last.
    pub(super) fn take_of(
        &mut self,
        view: Arc<ClusterView>,
        read: Now,
        written: Epoch,
    ) -> Result<Arc<NewView>, Full> {
        left_out::tell(self.last.as_deref().map(|last| &*last.view), &view);
        self.place(view, read, written)
    }

    /// Gives nodes their places, and works out what follows.
    fn place(&mut self, view: Arc<ClusterView>, read: Now, written: Epoch) -> Result<Arc<NewView>, Full> {
        let last = self.last.clone();
        let waited = self.places_wait;
        let known = last.as_ref().is_some_and(|last| view.has_same_names(&last.view));
        if !known || waited {
            let names = view.nodes.iter().map(|node| &node.name);
            let waiting = self.indices.reconcile(names, self.next().0, written.0)?;
            if waiting > 0 {
                tracing::warn!(
                    event = "nodes-without-place",
                    nodes = waiting,
                    "these nodes have no place in the maps until places of nodes that left are free"
                );
            }
            self.places_wait = waiting > 0;
        }
        // A view that waited for places is compared with none: the same nodes may have other places.
        let before = last.as_deref().filter(|_| !waited);
        Ok(self.build(view, read, before))
    }

    /// The number of the next view.
    fn next(&self) -> Epoch {
        Epoch(self.last.as_ref().map_or(1, |last| last.epoch.0 + 1))
    }

    /// `before`: the view that it is compared with, and shares parts with.
    fn build(&mut self, view: Arc<ClusterView>, read: Now, before: Option<&NewView>) -> Arc<NewView> {
        let policy = Policy { own_node: &self.own, mode: self.mode, answer: self.answer };
        let epoch = self.next();
        let slots = |name: &str| self.indices.get(name);
        let built = NewView::build(epoch, view, slots, |node| node.pool.clone(), &policy, self.proxy, before);
        let built = Arc::new(NewView { read, ..built });
        self.last = Some(Arc::clone(&built));
        self.bin.push(Arc::clone(&built));
        built
    }

    /// Gives places to nodes that had none, once tables are written without the nodes that had these places.
    fn give_places(&mut self, inbox: &Inbox, written: Epoch) {
        let Some(last) = self.last.clone().filter(|last| self.places_wait && last.epoch <= written) else {
            return;
        };
        // This view was taken before, so it is not too large.
        if let Ok(again) = self.place(Arc::clone(&last.view), last.read, written) {
            inbox.view(again, None);
        }
    }

    /// Frees views that nobody else reads.
    fn sweep(&mut self) {
        let Some(last) = &self.last else { return };
        let is_kept = |view: &Arc<NewView>| {
            view.epoch == last.epoch || Arc::strong_count(view) > 1 || is_read(view, last, &self.bin)
        };
        let kept: Vec<bool> = self.bin.iter().map(is_kept).collect();
        let mut kept = kept.into_iter();
        self.bin.retain(|_| kept.next().unwrap_or(true));
    }

    /// Starts the thread.
    pub(super) fn start(
        mut self,
        builds: Arc<Builds>,
        inbox: Arc<Inbox>,
        beat: Arc<Beat>,
        crew: &Crew,
    ) -> std::io::Result<()> {
        let started = crew.thread("builder", Priority::Batch, move || {
            loop {
                let comes_back = self.bin.len() > 1 || self.places_wait;
                let longest = if comes_back { SWEEP } else { IDLE };
                let work = builds.0.take(longest, BuildWork::is_something);
                if work.end {
                    return Ok(());
                }
                let begun = Instant::now();
                let apart = if work.is_something() { APART } else { Duration::ZERO };
                let written = Epoch(beat.tables());
                self.carry_out(work, &inbox, written);
                self.give_places(&inbox, written);
                self.sweep();
                std::thread::sleep(apart.saturating_sub(begun.elapsed()));
            }
        });
        started.map(drop)
    }

    fn carry_out(&mut self, work: BuildWork, inbox: &Inbox, written: Epoch) {
        let other_mode = work.mode.is_some_and(|mode| mode != self.proxy);
        if let Some(mode) = work.mode {
            self.proxy = mode;
        }
        let is_another = work.view.is_some_and(|(view, read, taken)| {
            let result = self.take_of(view, read, written).map(|view| {
                let flags = flags_of(&view.view);
                inbox.view(view, Some(flags));
            });
            // Whoever waited may have gone.
            let _gone = taken.send(result);
            result.is_ok()
        });
        if other_mode
            && !is_another
            && let Some(last) = self.last.clone()
        {
            // The view is the same, but other ports of it may be exempt now.
            let again = self.build(Arc::clone(&last.view), last.read, Some(&last));
            inbox.view(again, None);
        }
        if let Some(at) = work.confirmed {
            inbox.tell(Input::Confirmed(at));
        }
    }
}

/// The claims of a view's own source.
pub(super) fn flags_of(view: &ClusterView) -> Vec<(NodeName, NewClaim)> {
    view.flags.iter().map(|flag| (flag.node.clone(), NewClaim::of_file(flag))).collect()
}

/// Whether anybody else has a part of the view that grows with the view. A part that is shared with the last view does not count: it
/// is not freed with this view. `all`: the views here, which share parts with each other.
fn is_read(view: &NewView, last: &NewView, all: &[Arc<NewView>]) -> bool {
    let is_held = [
        is_held(view, last, all, |view| &view.view),
        is_held(view, last, all, |view| &view.members),
        is_held(view, last, all, |view| &view.exempt),
        is_held(view, last, all, |view| &view.addresses),
        is_held(view, last, all, |view| &view.tables),
    ];
    is_held.contains(&true)
}

fn is_held<T>(
    view: &NewView,
    last: &NewView,
    all: &[Arc<NewView>],
    part: impl Fn(&NewView) -> &Arc<T>,
) -> bool {
    let of = part(view);
    let here = all.iter().filter(|other| Arc::ptr_eq(part(other), of)).count();
    !Arc::ptr_eq(part(last), of) && Arc::strong_count(of) > here
}

#[cfg(test)]
mod tests {
    use nodefence_common::MAX_NODES;

    use super::*;
    use crate::{agent::inbox::Message, cluster::parse, flags::now, plan::Slot};

    const POLICY: Policy<'static> = Policy { own_node: "a", mode: Mode::Enforce, answer: Answer::Refuse };

    /// No tables were written yet.
    const NONE: Epoch = Epoch(0);

    fn view(text: &str) -> Arc<ClusterView> {
        Arc::new(parse(&format!("nodes:\n{text}"), false).unwrap())
    }

    fn delivered(inbox: &Inbox) -> Option<(Arc<NewView>, Option<usize>)> {
        match inbox.take() {
            Some(Message::Tell(Input::View { view, flags })) => Some((view, flags.map(|flags| flags.len()))),
            Some(_) => panic!("something else"),
            None => None,
        }
    }

    #[test]
    fn another_mode_gives_the_same_view_once_more() {
        let mut builder = Builder::new(&POLICY, None, Indices::default());
        let first = builder.take(view("- {name: a, address: 10.0.0.1}\n"), NONE).unwrap();
        let inbox = Inbox::default();
        let of_mode = |mode| BuildWork { mode: Some(mode), ..BuildWork::default() };
        builder.carry_out(of_mode(None), &inbox, NONE);
        assert!(delivered(&inbox).is_none(), "it is the same mode");
        builder.carry_out(of_mode(Some(proxy::Mode::Ipvs)), &inbox, NONE);
        let (again, flags) = delivered(&inbox).unwrap();
        assert!(Arc::ptr_eq(&again.view, &first.view) && again.epoch > first.epoch);
        assert_eq!((again.read, again.delta.base, flags), (first.read, Some(first.epoch), None));
    }

    #[test]
    fn a_place_is_given_away_once_its_backends_are_gone() {
        let mut builder = Builder::new(&POLICY, None, Indices::default());
        let inbox = Inbox::default();
        let node = |n: u32| format!("- {{name: n{n}, address: 10.0.{}.{}}}\n", n / 256, n % 256);
        let without = |gone: u32| view(&(0..=MAX_NODES).filter(|n| *n != gone).map(node).collect::<String>());
        let first = builder.take(without(MAX_NODES), NONE).unwrap();
        let place = first.members["n7"].slot;
        let new = format!("n{MAX_NODES}");
        let second = builder.take(without(7), first.epoch).unwrap();
        assert!(!second.members.contains_key(new.as_str()) && !second.members.contains_key("n7"));
        builder.give_places(&inbox, first.epoch);
        assert!(delivered(&inbox).is_none(), "the backends of n7 lie in the maps");
        builder.give_places(&inbox, second.epoch);
        let (third, flags) = delivered(&inbox).unwrap();
        assert_eq!(third.members[new.as_str()].slot, Slot { generation: place.generation + 1, ..place });
        assert_eq!((third.epoch, flags, third.delta.base), (Epoch(second.epoch.0 + 1), None, None));
        builder.give_places(&inbox, third.epoch);
        assert!(delivered(&inbox).is_none());
        // The next view of the same nodes gives them as well.
        let fourth = builder.take(without(8), third.epoch).unwrap();
        assert!(!fourth.members.contains_key("n7"));
        let fifth = builder.take(without(8), fourth.epoch).unwrap();
        assert_eq!(fifth.members["n7"].slot.index, third.members["n8"].slot.index);
    }

    #[test]
    fn what_is_shared_with_the_last_view_keeps_no_other() {
        let mut builder = Builder::new(&POLICY, None, Indices::default());
        let text =
            |last: u8| format!("- {{name: a, address: 10.0.0.1, backends: [{{address: 10.1.0.{last}}}]}}\n");
        let first = builder.take(view(&text(1)), NONE).unwrap();
        let second = builder.take(view(&text(2)), NONE).unwrap();
        assert!(
            Arc::ptr_eq(&first.members, &second.members) && Arc::ptr_eq(&first.addresses, &second.addresses)
        );
        let others = (Arc::clone(&second.members), Arc::clone(&second.addresses), Arc::clone(&first.tables));
        drop(first);
        builder.sweep();
        assert_eq!(builder.bin.len(), 2);
        let (_members, _addresses, tables) = others;
        drop(tables);
        builder.sweep();
        assert!(builder.bin.len() == 1 && Arc::ptr_eq(&builder.bin[0], &second));
    }

    #[test]
    fn a_view_that_is_not_taken_takes_the_place_of_one_that_waits() {
        let mut builder = Builder::new(&POLICY, None, Indices::default());
        let inbox = Inbox::default();
        let builds = Builds::default();
        let nodes = "- {name: a, address: 10.0.0.1}\n- {name: b, address: 10.0.0.2}\n";
        // The view that is built must have this time.
        let read = Now { mono: 7, ..now() };
        for text in [format!("{nodes}flags: [{{node: b}}]\n").as_str(), nodes] {
            let mut taken = builds.deliver(view(text), read);
            builder.carry_out(builds.0.take(SWEEP, BuildWork::is_something), &inbox, NONE);
            assert_eq!(taken.try_recv(), Ok(Ok(())));
        }
        // The flags are those of the view that was read last; another mode reads nothing.
        builds.set_mode(Some(proxy::Mode::Ipvs));
        builder.carry_out(builds.0.take(SWEEP, BuildWork::is_something), &inbox, NONE);
        let (latest, flags) = delivered(&inbox).unwrap();
        assert_eq!((latest.epoch, latest.read, flags), (Epoch(3), read, Some(0)));
        assert!(delivered(&inbox).is_none());
    }

    #[test]
    fn views_come_ten_times_a_second_at_most() {
        let builds = Arc::new(Builds::default());
        let inbox = Arc::new(Inbox::default());
        let builder = Builder::new(&POLICY, None, Indices::default());
        builder
            .start(Arc::clone(&builds), Arc::clone(&inbox), Arc::new(Beat::new(0)), &Crew::default())
            .unwrap();
        let text = "- {name: a, address: 10.0.0.1}\n";
        let begun = Instant::now();
        while begun.elapsed() < 4 * APART {
            let _replaced = builds.deliver(view(text), now());
            std::thread::sleep(APART / 20);
        }
        let taken =
            builds.deliver(view(&format!("{text}- {{name: b, address: 10.0.0.2}}\n")), now()).blocking_recv();
        let most = begun.elapsed().as_millis() / APART.as_millis() + 1;
        assert_eq!(taken, Ok(Ok(())));
        let (latest, _) = delivered(&inbox).unwrap();
        assert!(latest.view.node("b").is_some(), "the last one counts");
        assert!(u128::from(latest.epoch.0) <= most, "{:?} in {:?}", latest.epoch, begun.elapsed());
    }

    #[test]
    fn a_view_is_kept_as_long_as_somebody_reads_a_part_of_it() {
        let mut builder = Builder::new(&POLICY, None, Indices::default());
        let text = "- {name: a, address: 10.0.0.1}\n";
        let first = builder.take(view(text), NONE).unwrap();
        let second = builder.take(view(&format!("{text}- {{name: b, address: 10.0.0.2}}\n")), NONE).unwrap();
        let members = Arc::clone(&first.members);
        drop(first);
        builder.sweep();
        assert_eq!(builder.bin.len(), 2);
        drop(members);
        builder.sweep();
        assert!(builder.bin.len() == 1 && Arc::ptr_eq(&builder.bin[0], &second));
        drop(second);
        builder.sweep();
        assert_eq!(builder.bin.len(), 1, "the last one is what the next is held against");
    }
}
