/// Value of `counters` (per CPU, key: [`Reason`] as `u32`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counter {
    /// Packets (a GSO packet counts once).
    pub packets: u64,
    /// Bytes from the network header on.
    pub bytes: u64,
}

const _: () = assert!(size_of::<Counter>() == 16);

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $value:literal, $name:literal;)+) => {
        /// Why a packet was counted. Packets that pass a healthy node or no backend at all are not counted: the passing
        /// path writes nothing.
        #[repr(u32)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Reason { $($(#[doc = $doc])+ $variant = $value),+ }

        impl Reason {
            /// All reasons, in the order of the map's index.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name shown by `counters` and in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// One line on what it means.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+)),+ }
            }
        }
    };
}

reasons! {
    /// TCP segment answered with a RST.
    Reset = 0, "reset";
    /// TCP segment without ACK answered with RST|ACK.
    Refused = 1, "refused";
    /// Datagram answered with ICMP port unreachable.
    Unreachable = 2, "unreachable";
    /// Dropped without answer: the action is drop, or the packet is never answered (RST, ICMP, multicast, other protocols).
    Dropped = 3, "dropped";
    /// Dropped and handed to user space, which injects the answer.
    Handed = 4, "handed";
    /// Datagram dropped without answer because the machine's ICMP budget for the second was spent.
    IcmpLimited = 5, "icmp_limited";
    /// Fragment to a flagged backend, dropped.
    FragmentDropped = 6, "fragment_dropped";
    /// Fragment to an address of a flagged node that has host-network backends or exempt ports, passed: its port is unknown.
    FragmentPassed = 7, "fragment_passed";
    /// Could not be parsed, passed.
    Unparsed = 8, "unparsed";
    /// Dropped because the answer could not be made (a helper failed, or the ring buffer was full).
    Failed = 9, "failed";
    /// Passed, would have been cut (observe).
    Observed = 10, "observed";
    /// Passed: the verdict had lapsed.
    Lapsed = 11, "lapsed";
    /// Passed: the backend's entry names an older owner of the node index.
    Stale = 12, "stale";
    /// Passed on to a flagged backend by rule: ICMPv6 133-137.
    NeighbourDiscovery = 13, "neighbour_discovery";
    /// Passed on to a flagged backend: its Service has nothing else, or the packet has no port and some port of the address is exempt.
    Exempt = 14, "exempt";
    /// Dropped and handed to user space, which rescues it or injects the answer.
    Rescue = 15, "rescue";
    /// Passed on to a flagged backend on this machine: a socket of the machine is connected to it without translation, as the kubelet's probes are.
    OwnSocket = 16, "own_socket";
    /// Datagram dropped without answer because its sender had six ICMP answers in a row, and gets one a second.
    IcmpSenderLimited = 17, "icmp_sender_limited";
    /// TCP segment dropped without answer because user space, which would have to make it, makes no more for the second.
    AnswerLimited = 18, "answer_limited";
    /// Passed on to an address of a flagged backend: not sent by this node (its source MAC address is no device's here), or in a VLAN by which no route to a backend leaves.
    Foreign = 19, "foreign";
}

impl Reason {
    /// Size of the `counters` map.
    pub const COUNT: u32 = Self::ALL.len() as u32;
}
