//! The kinds of faults that the incident is run with.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::times::Times;

/// What happens to the node. In the order in which a cluster goes through them: a node that is off stays off.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Every process of the node is stopped. Its kernel goes on to answer for them.
    #[default]
    Freeze,
    /// The same, while the API server is stopped too. So the node is flagged on each other node by `nodefence flag`.
    NoApi,
    /// All pods of the node are frozen. The kubelet goes on, finds that they do not answer, and says so.
    Pods,
    /// The node is powered off, and stays off. Its kernel answers nothing.
    Off,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Freeze, Self::NoApi, Self::Pods, Self::Off];

    /// The name on the command line, and of the folder.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::NoApi => "no-api",
            Self::Pods => "pods",
            Self::Off => "off",
        }
    }

    /// What happens, in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Freeze => "node frozen",
            Self::NoApi => "node frozen, API server stopped",
            Self::Pods => "pods frozen, kubelet alive",
            Self::Off => "node powered off",
        }
    }

    /// The scenario whose run without a flag stands beside the one with a flag. Without a flag the API server matters only once it knows that the node is lost.
    pub const fn stock(self) -> Self {
        match self {
            Self::NoApi => Self::Freeze,
            other => other,
        }
    }

    /// Whether the node goes on at the end of a run.
    pub const fn comes_back(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// The word for the moment at which it begins.
    pub const fn moment(self) -> &'static str {
        match self {
            Self::Off => "power-off",
            _ => "freeze",
        }
    }

    /// The node, in words that end a sentence.
    pub const fn node(self) -> &'static str {
        match self {
            Self::Freeze | Self::NoApi => "the frozen node",
            Self::Pods => "the frozen pods",
            Self::Off => "the node that is off",
        }
    }

    /// What the node does at the beginning, behind its name.
    pub const fn begins(self) -> &'static str {
        match self {
            Self::Freeze | Self::NoApi => " freezes",
            Self::Pods => "'s pods freeze",
            Self::Off => " is off",
        }
    }

    /// What the node's kernel does meanwhile, as a sentence.
    pub const fn kernel(self) -> &'static str {
        match self {
            Self::Freeze => "Every process of the node is frozen, its kernel still accepts and acknowledges.",
            Self::NoApi => {
                "Every process of the node is frozen, its kernel still accepts and acknowledges. With nodefence, the API server is stopped too."
            }
            Self::Pods => {
                "All pods of the node are frozen, its kernel still accepts and acknowledges, its kubelet goes on."
            }
            Self::Off => "The node is powered off, its kernel answers nothing.",
        }
    }

    /// The times on real kubelets.
    pub const fn times(self) -> Times {
        let seconds = Duration::from_secs;
        let full = Times::FULL;
        match self {
            Self::Freeze => full,
            // The API server is back before the controllers count the other nodes as lost, which takes 50 s from a node's last sign of life, at most 10 s before.
            Self::NoApi => Times { flagged: seconds(30), ..full },
            // The kubelet counts a pod as not ready after three probes of 5 s. kube-proxy sends it no new connections then, and keeps those that it has.
            Self::Pods => Times { stock: seconds(45), ..full },
            // In both runs the controllers find the node lost, which takes most of a minute, and kube-proxy drops its endpoints.
            Self::Off => Times { flagged: full.stock, after: Duration::ZERO, ..full },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::plan::Plan;

    #[test]
    fn a_scenario_has_one_name_and_the_one_without_a_way_back_is_the_last() {
        for scenario in Scenario::ALL {
            assert_eq!(serde_json::to_value(scenario).expect("JSON"), scenario.name());
            assert_eq!(scenario.stock().stock(), scenario.stock());
        }
        assert!(Scenario::ALL.is_sorted());
        let stay: Vec<_> = Scenario::ALL.into_iter().filter(|scenario| !scenario.comes_back()).collect();
        assert_eq!(stay, [Scenario::Off]);
        assert_eq!(Scenario::Off.times().after, Duration::ZERO, "a node that stays off is judged to the end");
    }

    #[test]
    fn a_scenario_has_its_times_and_a_folder_of_its_own() {
        let plan = Plan {
            image: "image".to_owned(),
            through: "node-1".to_owned(),
            servers: vec!["node-2".to_owned()],
            frozen: "node-2".to_owned(),
            pods_each: 1,
            out: "out".into(),
            scenario: Scenario::Freeze,
            times: Times::FULL,
        };
        let folders = Scenario::ALL.map(|scenario| plan.of(scenario).out);
        assert_eq!(
            folders.map(|folder| folder.display().to_string()),
            ["out", "out/no-api", "out/pods", "out/off"]
        );
        let off = plan.of(Scenario::Off);
        assert_eq!((off.scenario, off.times.flagged), (Scenario::Off, Duration::from_secs(75)));
    }
}
