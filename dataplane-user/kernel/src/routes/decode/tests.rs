use super::*;

/// The bodies in `policies.hex`, each with the arguments of its `ip` command.
fn listed() -> Vec<(&'static str, Vec<u8>)> {
    let lines: Vec<&str> = include_str!("policies.hex").lines().skip(1).collect();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let body = |hex: &str| hex.as_bytes().as_chunks().0.iter().map(byte).collect();
    lines.as_chunks::<2>().0.iter().map(|[told, hex]| (told.trim_start_matches("# "), body(hex))).collect()
}

#[test]
fn ipsec_policies_are_read_as_the_kernel_lists_them() {
    let wraps = |range: (&str, u8)| Policy {
        priority: 0,
        to: Prefix::new(range.0.parse().unwrap(), range.1).unwrap(),
        only_some: false,
        marked: false,
        wraps: true,
    };
    let expected = [
        Some(Policy { priority: 7, only_some: true, ..wraps(("10.244.2.0", 24)) }),
        // No policy decides anything that wraps nothing and is for some packets only, or that is for incoming packets or for those
        // of an XFRM device.
        None,
        None,
        None,
        Some(Policy { priority: 9, marked: true, ..wraps(("10.245.0.0", 16)) }),
        Some(Policy { priority: 4, wraps: false, ..wraps(("10.9.0.0", 16)) }),
        None,
        None,
        Some(Policy { only_some: true, ..wraps(("fd00:244:2::", 64)) }),
        Some(Policy { wraps: false, ..wraps(("10.7.0.0", 16)) }),
        Some(wraps(("10.6.0.0", 16))),
    ];
    let listed = listed();
    assert_eq!(listed.len(), expected.len());
    for ((told, body), expected) in listed.iter().zip(expected) {
        assert_eq!(policy(body), expected, "{told}");
    }
    // A socket's own policy (byte 160) is for that socket's packets only. Each of the other bytes alone limits a policy to some
    // packets.
    let (told, body) = listed.last().unwrap();
    for (at, value) in [(160, 4), (34, 255), (38, 255), (43, 1), (44, 17), (48, 2), (52, 1)] {
        let mut body = body.clone();
        body[at] = value;
        let only_some = policy(&body).map(|policy| policy.only_some);
        assert_eq!(only_some, Some(true), "byte {at} of {told}");
    }
    // A body that is cut off before its template ends is no policy, or one that wraps nothing.
    for len in 0..body.len() {
        assert!(policy(&body[..len]).is_none_or(|policy| !policy.wraps || len >= 236), "{len}");
    }
}
