//! How many packets the kernel may hand over: a budget for the whole machine, and a share of one processor. Packets beyond it are refused at once, in the
//! kernel. Pure.

/// For how long (ns) unused budget adds up: the burst that may come at once after a pause.
const BURST_NS: u64 = 100_000_000;
/// How much of one processor the thread that rescues may take, in percent. It runs before all other threads.
const SHARE: u64 = 20;
/// How much unused time (ns) of that share adds up.
const MOST_TIME_NS: u64 = 50_000_000;
const SECOND: u64 = 1_000_000_000;

/// How many packets may be handed over, by the kernel's count: all packets that it was about to hand over since its maps were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// The kernel hands packets over up to this count.
    pub up_to: u64,
    /// How many packets were beyond the budget since the last look, and refused at once.
    pub beyond: u64,
}

/// The budget of packets to rescue.
#[derive(Debug)]
pub struct Budget {
    per_second: u64,
    /// Packets that are left, each counted as one second.
    packets: u64,
    /// Processor time that is left, in ns. Below zero where more was taken than there was.
    time: i64,
    /// When the budget was last looked at (CLOCK_MONOTONIC ns). The fields below are of then.
    looked: Option<u64>,
    asked: u64,
    up_to: u64,
    busy: u64,
}

impl Budget {
    /// A budget of this many packets a second.
    pub const fn new(per_second: u32) -> Self {
        Self { per_second: per_second as u64, packets: 0, time: 0, looked: None, asked: 0, up_to: 0, busy: 0 }
    }

    /// What may be handed over from `now` on. `asked`: how many packets the kernel was about to hand over so far. `busy`: how long (ns) the thread that takes them has run
    /// so far.
    pub fn look(&mut self, now: u64, asked: u64, busy: u64) -> Allowed {
        // At least one whole packet, however few are allowed a second.
        let most = (self.per_second * BURST_NS).max(if self.per_second > 0 { SECOND } else { 0 });
        let Some(looked) = self.looked.replace(now) else {
            self.packets = most;
            self.time = MOST_TIME_NS.cast_signed();
            self.asked = asked;
            self.busy = busy;
            self.up_to = asked + most / SECOND;
            return Allowed { up_to: self.up_to, beyond: 0 };
        };
        // A clock that was set ahead, or a machine that slept, fills no more than the burst.
        let elapsed = now.saturating_sub(looked).min(SECOND);
        let taken = asked.min(self.up_to).saturating_sub(self.asked);
        let beyond = asked.saturating_sub(self.up_to.max(self.asked));
        let filled = self.packets + elapsed * self.per_second;
        self.packets = filled.saturating_sub(taken * SECOND).min(most);
        let earned = (elapsed * SHARE / 100).cast_signed();
        let spent = busy.saturating_sub(self.busy).cast_signed();
        self.time = (self.time + earned - spent).min(MOST_TIME_NS.cast_signed());
        self.asked = asked;
        self.busy = busy;
        self.up_to = asked + if self.time > 0 { self.packets / SECOND } else { 0 };
        Allowed { up_to: self.up_to, beyond }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What a flood gets that asks for `each` packets in each of these milliseconds, where each that is taken costs `cost` ns.
    fn flood(budget: &mut Budget, from: u64, millis: u64, each: u64, cost: u64) -> (u64, u64) {
        let (mut asked, mut taken, mut busy) = (budget.asked, 0, budget.busy);
        let mut beyond = 0;
        for at in 0..millis {
            let allowed = budget.look((from + at) * MS, asked, busy);
            beyond += allowed.beyond;
            let now = each.min(allowed.up_to - asked);
            taken += now;
            busy += now * cost;
            asked += each;
        }
        (taken, beyond + budget.look((from + millis) * MS, asked, busy).beyond)
    }

    #[test]
    fn what_is_within_the_budget_is_taken() {
        let mut budget = Budget::new(10_000);
        assert_eq!(flood(&mut budget, 1_000, 3_000, 9, 10_000), (27_000, 0));
    }

    #[test]
    fn a_flood_gets_the_budget_and_no_more() {
        let mut budget = Budget::new(10_000);
        let (taken, beyond) = flood(&mut budget, 1_000, 3_000, 100, 1_000);
        // What was kept, and three seconds.
        assert!((30_900..=31_000).contains(&taken), "{taken}");
        assert_eq!(taken + beyond, 300_000);
    }

    #[test]
    fn the_thread_gets_its_share_of_a_processor_and_no_more() {
        let mut budget = Budget::new(10_000);
        let (taken, beyond) = flood(&mut budget, 1_000, 5_000, 100, 50_000);
        // A fifth of five seconds, what was kept, and one look that came to more.
        let busy = taken * 50_000 / MS;
        assert!((1_000..=1_060).contains(&busy), "{busy} ms");
        assert_eq!(taken + beyond, 500_000);
    }

    #[test]
    fn after_a_pause_no_more_than_a_burst_is_there() {
        let mut budget = Budget::new(10_000);
        flood(&mut budget, 0, 1_000, 100, 1_000);
        let asked = budget.asked;
        let allowed = budget.look(3_600_000 * MS, asked, budget.busy);
        assert_eq!(allowed, Allowed { up_to: asked + 1_000, beyond: 0 });
    }

    #[test]
    fn few_a_second_come_one_by_one() {
        let mut budget = Budget::new(1);
        // The one that was kept, and three seconds.
        assert_eq!(flood(&mut budget, 1_000, 3_000, 1, 1_000), (3, 2_997));
    }

    #[test]
    fn none_a_second_is_none_ever() {
        let mut budget = Budget::new(0);
        assert_eq!(flood(&mut budget, 0, 1_000, 3, 1_000), (0, 3_000));
    }
}
