//! Warnings of `status`: a code for each, which is an interface, and what it means.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The effect of a warning's cause on the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is cut though it should be.
    Blind,
    /// A part of the agent does not work.
    Fails,
    /// The agent works, and something is not cut, or soon may not be.
    Limits,
    /// The warning is of something that was counted since the agent began. It does not stand now.
    Past,
}

/// What a code means, the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The effect on the cut.
    pub effect: Effect,
    /// What is wrong, in a few words.
    pub title: &'static str,
    /// What it means.
    pub means: &'static str,
    /// What users see of it.
    pub users: &'static str,
    /// What to do: a command that can be pasted, and behind `#` what else there is to know. `CLUSTER_FILE`, `PIN_DIR`, `DEVICE` and `ROOM` stand for this node's own.
    pub remedy: &'static str,
}

macro_rules! codes {
    ($($code:tt $name:ident $effect:ident { $title:literal $means:literal $users:literal $remedy:literal })*) => {
        /// The number of a warning. A number never gets another meaning; one that is not used any more stays unused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        pub enum Code {
            $(
                #[doc = $title]
                #[serde(rename = $code)]
                $name,
            )*
        }

        impl Code {
            /// All codes, by number.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The code as it is printed: `NF` and two digits.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// What the code means.
            pub const fn explanation(self) -> Explanation {
                let (effect, title, means, users, remedy) = match self {
                    $(Self::$name => (Effect::$effect, $title, $means, $users, $remedy),)*
                };
                Explanation { effect, title, means, users, remedy }
            }
        }
    };
}

codes! {
    "NF01" NoView Blind {
        "no view was read"
        "The agent has not yet been told which nodes and backends there are."
        "Nothing is cut. A flag waits until its node is known."
        "journalctl -u nodefence | grep -e view -e cluster  # in a pod: crictl logs; the source of nodes does not answer, or its first lists are not complete"
    }
    "NF02" NotAttached Blind {
        "no device is attached"
        "The agent's programs run on no device, so no packet meets the cut."
        "Nothing is cut. Clients of a hung node wait for their own timeouts."
        "nodefence doctor  # what keeps the programs off each device; --interface auto chooses the devices by routes"
    }
    "NF03" NothingCovered Blind {
        "no backend is covered"
        "Programs are attached, but packets to all backends leave by other devices."
        "Nothing is cut. Clients of a hung node wait for their own timeouts."
        "nodefence backends  # names the device of each; attach to these with --interface, or use --interface auto"
    }
    "NF04" Lapsed Blind {
        "verdicts have lapsed"
        "The kernel ignores verdicts that were not renewed for 3 s. The agent renews them each second, unless it hangs or gets no processor."
        "Nothing is cut. In IPVS mode the guard restores what was drained."
        "systemctl restart nodefence  # in a pod: crictl stop; look at its log first: is the machine overloaded?"
    }
    "NF05" RenewedLate Fails {
        "verdicts are renewed late"
        "Verdicts are renewed each second. The last time is more than 2 s ago, and the kernel ignores them after 3 s."
        "Nothing yet. If it goes on, all traffic to flagged nodes passes."
        "cat /proc/pressure/cpu  # is the machine overloaded? then `systemctl restart nodefence` (in a pod: crictl stop)"
    }
    "NF06" RenewFailed Fails {
        "a verdict could not be written"
        "The kernel refused a write to the map of verdicts. The agent tries again each second."
        "The named node's verdict lapses 3 s after the last good write, and its traffic passes."
        "journalctl -u nodefence -p warning  # the error (in a pod: crictl logs); then `systemctl restart nodefence` (crictl stop)"
    }
    "NF07" Replaced Limits {
        "something forwards Services in kube-proxy's place"
        "A device shows that another program forwards Services on this node. Beside it the agent only observes, since that was never tried."
        "Nothing is cut. What would be cut is counted."
        "ip link delete DEVICE  # only where the product is gone from this node; else start the agent with --force, which is at your risk"
    }
    "NF08" ViewTooOld Fails {
        "the view is too old"
        "The source of nodes has not confirmed its view for longer than --max-view-age. Addresses in it may be others' by now."
        "Nothing is cut until the source confirms it. What would be cut is counted."
        "touch CLUSTER_FILE  # if it is still right; whoever writes it is to do so in time"
    }
    "NF09" SourceRefused Fails {
        "what the source of nodes says was not taken"
        "The cluster file, or what else says which nodes there are, has an error. The last good view holds."
        "New nodes and pods are not cut, and a flag in the file counts for nothing. An agent that is restarted does not start."
        "${EDITOR:-vi} CLUSTER_FILE  # the message names line and field"
    }
    "NF10" SourceNotWatched Limits {
        "the source of nodes is not watched"
        "The kernel does not tell the agent when the cluster file changes (inotify), so the agent reads it every few seconds."
        "Changes of the file take effect some seconds later."
        "sysctl fs.inotify.max_user_instances fs.inotify.max_user_watches  # raise the one that is used up"
    }
    "NF11" Conflicts Limits {
        "objects conflict"
        "Objects of the source contradict each other, as two nodes that claim one address do. What conflicts is left out."
        "Traffic to what is left out is not cut."
        "nodefence status -o wide  # it names the first of them; correct these objects"
    }
    "NF12" EndpointsLeftOut Limits {
        "endpoints are left out"
        "Endpoints have an IP version of which their node names no address. Each may be the node's own address, with its kubelet and ssh."
        "Traffic to these endpoints is not cut."
        "nodefence status -o wide  # it names the first of them; name all addresses of these nodes, of both IP versions"
    }
    "NF13" DangerousFlags Limits {
        "flags of the source are dangerous"
        "`flags:` flags the node that the agent runs on, or more than a third of all nodes, and is carried out all the same. Or a flag there has ended, and means nothing."
        "What is left may not carry the load. On a node that flags itself, clients that enter there lose its pods."
        "nodefence nodes --flagged  # who is flagged, and why; take back what is not meant"
    }
    "NF14" FlagsFile Fails {
        "flags are not saved"
        "The file that keeps the flags of the command could not be read or written."
        "A restart of the agent loses flags, or brings back one that was taken back."
        "nodefence nodes --flagged; df /run/nodefence  # flag again what is missing; the disk may be full or not answer"
    }
    "NF15" ClaimsWithheld Limits {
        "claims are withheld"
        "More nodes are claimed hung, without a person's word, than --auto-limit allows. None of these claims is enforced there."
        "Traffic to these nodes passes, unless somebody flags them."
        "nodefence nodes --flagged  # flag by hand the node that is really hung"
    }
    "NF16" MapsNotWritten Fails {
        "the maps could not be written"
        "The kernel refused a write to the maps of backends and ports. The agent tries again."
        "Traffic to backends that are missing there is not cut."
        "journalctl -u nodefence -p warning  # the error (in a pod: crictl logs); then `systemctl restart nodefence` (crictl stop)"
    }
    "NF17" MapsNotCompared Limits {
        "the maps could not be compared"
        "The agent compares its maps every ten minutes with what it has written. The last comparison was given up."
        "Nothing, unless somebody else changes the maps: that would stay unseen."
        "journalctl -u nodefence -p warning  # the error (in a pod: crictl logs)"
    }
    "NF18" MapsChanged Past {
        "somebody else changed the maps"
        "A comparison found entries that the agent had not written so. They were corrected."
        "Until then traffic may have passed, or have been cut, that should not."
        "bpftool map show  # which process holds the maps besides? the agent's log names the first entries"
    }
    "NF19" BackendsBeyondMaps Fails {
        "backends do not fit in the maps"
        "There are more backends than the map has room for (--max-backends)."
        "Traffic to backends that do not fit is not cut."
        "echo NODEFENCE_MAX_BACKENDS=ROOM >> /etc/default/nodefence && systemctl restart nodefence  # in a pod: the variable in the chart's agent.extraEnv"
    }
    "NF20" PortsBeyondMaps Fails {
        "host-network ports do not fit in the maps"
        "There are more host-network ports than the map has room for (65,536, exempt ports included)."
        "Traffic to ports that do not fit is not cut."
        "nodefence backends -o json | jq '[.items[] | select(.port)] | length'  # how many there are; list fewer hostNetwork backends"
    }
    "NF21" DeviceFails Fails {
        "a device is not attached"
        "The programs could not be attached to a device that was named, or that packets leave by."
        "What leaves by that device is not cut."
        "nodefence doctor --interface DEVICE  # what keeps the programs off it"
    }
    "NF22" VirtualFunctions Limits {
        "devices have virtual functions"
        "Pods that were given a virtual function (SR-IOV) send past the host's stack, where no program of ours runs."
        "What these pods send to flagged nodes is not cut."
        "ip link show dev DEVICE  # pods that have one: have them use Services by the cluster's own network"
    }
    "NF23" RoutesUnknown Fails {
        "routes could not be read"
        "Devices and routes could not be looked at, so coverage is as it was before."
        "A new route or device is not attached to. What leaves by it is not cut."
        "ip route show table all  # does it answer? the agent's log has the error"
    }
    "NF24" Uncovered Limits {
        "backends are not covered"
        "Packets to some backends leave by a device that is not attached, or by a way that the agent cannot follow (VRF, IPsec)."
        "Traffic to these backends is not cut."
        "nodefence backends  # names the device of each; attach to these with --interface, or use --interface auto"
    }
    "NF25" ChallengeIncomplete Limits {
        "idle clients were not all challenged"
        "After a flag the agent challenges clients that only wait, so that they are reset too. The last round ended early or failed."
        "Clients that were missed wait until they next send, or until their own timeouts."
        "nodefence status -o wide  # how many were challenged; flag the node again for another round"
    }
    "NF26" StaleIncomplete Limits {
        "stale entries were not all deleted"
        "kube-proxy's affinity, or conntrack, still sends some clients to a flagged node, since not all of these entries could be deleted."
        "Clients of these entries are refused until the entries end."
        "nodefence audit  # what is left; `nodefence repair --kind flagged-flow,flagged-affinity` deletes it"
    }
    "NF27" DrainLimited Limits {
        "IPVS is drained within limits"
        "A setting of IPVS, or a cluster file without Services, keeps the agent from draining flagged nodes as it should."
        "Connections of flagged nodes stay, or new ones are refused where nothing else is left."
        "sysctl -w net.ipv4.vs.expire_nodest_conn=1  # where the message names it; else give the cluster file its services"
    }
    "NF28" DrainFails Fails {
        "IPVS could not be read or changed"
        "The kernel's tables of IPVS, or the ledger of what was drained, could not be read or written."
        "New connections still go to flagged nodes and are refused there, unless rescue sends them elsewhere."
        "ipvsadm -Ln | head; journalctl -u nodefence -p warning  # does IPVS answer? the log (in a pod: crictl logs) has the error"
    }
    "NF29" DestinationsFail Fails {
        "IPVS destinations could not be changed"
        "The kernel refused to drain or restore some destinations of a node. The agent tries again."
        "New connections still go to these destinations. After an unflag they get none."
        "nodefence audit  # what IPVS has otherwise than it should"
    }
    "NF30" NoGuard Limits {
        "no guard is there"
        "The agent was started with --guard external, and no guard watches its run folder."
        "Nothing yet. Where the agent is killed, drained destinations keep weight 0 until kube-proxy is restarted."
        "nodefence guard --pin-dir PIN_DIR  # with the agent's --run-dir, in a container or unit of its own"
    }
    "NF31" LogLinesLost Past {
        "lines of the log were lost"
        "They came faster than they could be put into words, or than somebody read them."
        "What is cut does not change. The log has gaps."
        "nodefence log-level info  # log less; does whoever reads the agent's standard error stand still?"
    }
    "NF32" SourceAway Fails {
        "the API server does not answer"
        "A watch of the API server has ended, and could not be begun again. The agent tries again and again, with pauses of up to a minute. The last good view holds."
        "Flagged nodes stay cut, and flags are carried out. New pods and nodes are not known, and traffic to them is not cut."
        "journalctl -u nodefence | grep api-server  # the error (in a pod: crictl logs); does the API server answer from this node?"
    }
    "NF33" OrdersNotTaken Fails {
        "flags or settings of the cluster are not carried out"
        "The NodefenceSettings or NodeFlags cannot be watched or read. What was known last holds; a NodeFlag that cannot be read has no effect."
        "What the newest settings or such flags say is not done on this node."
        "kubectl get nodeflags,nodefencesettings,nodemembers  # the warning names the object and its field"
    }
}

impl Code {
    /// Whether the warning stands now; else it was counted since the agent began, and is no finding for `status --check`.
    pub fn is_standing(self) -> bool {
        self.explanation().effect != Effect::Past
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let is = |code: &&Self| {
            let name = code.name();
            name.eq_ignore_ascii_case(text) || name.strip_prefix("NF") == Some(text)
        };
        let known = Self::ALL.iter().find(is);
        known.copied().ok_or(UnknownCode)
    }
}

/// A code that no warning has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCode;

impl std::error::Error for UnknownCode {}

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        write!(f, "no warning has this code; expected one of {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_numbered_without_a_gap_and_read_as_they_are_printed() {
        for (at, &code) in Code::ALL.iter().enumerate() {
            assert_eq!(code.name(), format!("NF{:02}", at + 1));
            assert_eq!(code.name().parse(), Ok(code));
            assert_eq!(code.name().to_lowercase().parse(), Ok(code));
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
        let error = "NF99".parse::<Code>().unwrap_err().to_string();
        assert!(error.contains("NF01, NF02, ") && error.ends_with(Code::ALL[Code::ALL.len() - 1].name()));
    }

    /// Whoever is called at night pastes the remedy.
    #[test]
    fn each_remedy_begins_with_a_command() {
        let commands = [
            "nodefence",
            "echo",
            "journalctl",
            "systemctl",
            "cat",
            "ip",
            "touch",
            "${EDITOR:-vi}",
            "sysctl",
            "bpftool",
            "ipvsadm",
            "kubectl",
        ];
        for code in Code::ALL {
            let Explanation { title, means, users, remedy, .. } = code.explanation();
            let first = remedy.split(' ').next().unwrap();
            assert!(commands.contains(&first), "{code}: {remedy}");
            assert!(remedy.contains("  # "), "{code}: {remedy}");
            assert!(means.ends_with('.') && users.ends_with('.') && !title.ends_with('.'), "{code}");
            let others = Code::ALL.iter().filter(|other| other.explanation().title == title);
            assert_eq!(others.count(), 1, "{code}: {title}");
        }
    }
}
