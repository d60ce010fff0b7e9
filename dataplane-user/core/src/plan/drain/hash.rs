use crate::ipvs::{Service, flags};

/// What a destination of weight 0 does to clients that a scheduler picks by a hash: the others never give it any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hashing {
    /// Nothing.
    None,
    /// It keeps its share of the hash, and its clients are refused, when its weight is *set* to 0; added with weight 0 it has none. `mh` reckons
    /// with the last weight that was not 0 (`ip_vs_mh_permutate`, ip_vs_mh.c; `last_weight` in `__ip_vs_update_dest`, ip_vs_ctl.c).
    Remembers,
    /// It has a share whatever its weight is (`ip_vs_sh_reassign`, ip_vs_sh.c; `ip_vs_dh_reassign`, ip_vs_dh.c): there must be none.
    Always,
}

impl Hashing {
    pub(super) fn of(service: &Service) -> Self {
        // The flag means the same to both: clients of such a destination go to another one.
        let falls_back = service.flags.bits & flags::SCHEDULER_1 != 0;
        match service.scheduler.as_str() {
            "mh" if !falls_back => Self::Remembers,
            "sh" if !falls_back => Self::Always,
            "dh" => Self::Always,
            _ => Self::None,
        }
    }
}
