use crate::ipvs::{Service, flags};

/// What a destination of weight 0 does to clients whose scheduler picks by a hash. Other schedulers give it no clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hashing {
    /// Nothing.
    None,
    /// A destination whose weight is *set* to 0 keeps its share of the hash, and its clients are refused. One that is added with weight 0 has no share. `mh`
    /// counts the last weight that was not 0 (`ip_vs_mh_permutate`, ip_vs_mh.c; `last_weight` in `__ip_vs_update_dest`, ip_vs_ctl.c).
    Remembers,
    /// A destination has a share whatever its weight is (`ip_vs_sh_reassign`, ip_vs_sh.c; `ip_vs_dh_reassign`, ip_vs_dh.c): it must not be there.
    Always,
}

impl Hashing {
    pub(super) fn of(service: &Service) -> Self {
        // The flag means the same to both schedulers: clients of a destination of weight 0 go to another one.
        let falls_back = service.flags.bits & flags::SCHEDULER_1 != 0;
        match service.scheduler.as_str() {
            "mh" if !falls_back => Self::Remembers,
            "sh" if !falls_back => Self::Always,
            "dh" => Self::Always,
            _ => Self::None,
        }
    }
}
