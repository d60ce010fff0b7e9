use std::{fmt, net::IpAddr, str::FromStr};

/// A range of addresses, as in `10.96.0.0/16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    address: IpAddr,
    /// In bits.
    prefix: u8,
}

impl Cidr {
    /// Whether the address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                (ours.to_bits() ^ other.to_bits()) & mask == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                (ours.to_bits() ^ other.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no range of addresses: expected one like 10.96.0.0/16 or fd00::/64");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= longest).ok_or_else(wrong)?;
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_it_or_not() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("10.96.0.0/16", &["10.96.0.0", "10.96.255.255"], &["10.97.0.0", "fd00::", "::ffff:10.96.0.1"]),
            ("10.96.3.4/32", &["10.96.3.4"], &["10.96.3.5"]),
            ("0.0.0.0/0", &["0.0.0.0", "255.255.255.255"], &["::"]),
            ("fd00::/64", &["fd00::", "fd00::ffff:0:0:1"], &["fd00:0:0:1::", "10.0.0.1"]),
            ("::/0", &["::", "ffff::"], &["0.0.0.0"]),
            ("fd00::1/128", &["fd00::1"], &["fd00::2"]),
        ];
        for (text, inside, outside) in cases {
            let cidr: Cidr = text.parse().unwrap();
            assert_eq!(cidr.to_string(), *text);
            for address in *inside {
                assert!(cidr.contains(address.parse().unwrap()), "{address} in {text}");
            }
            for address in *outside {
                assert!(!cidr.contains(address.parse().unwrap()), "{address} not in {text}");
            }
        }
        for text in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0.0/-1", "x/8", "10.0.0.0/8/8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
