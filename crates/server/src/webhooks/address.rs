//! Where webhooks may lead: not into the networks that the server stands in.
//!
//! A tenant chooses the URL, so without these checks a tenant could have the server ask addresses
//! that only the server can reach (server-side request forgery). A name is resolved once for each
//! connection, and the connection goes to the very address that was checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use sluice_api::client::CheckAddress;

const URL_LENGTH_MAX: usize = 2000;

/// IPv4 networks that are not on the public Internet (IANA, IPv4 Special-Purpose Address Registry;
/// multicast, RFC 5771; reserved, RFC 1112).
const SPECIAL_V4: [([u8; 4], u8); 16] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
    ([255, 255, 255, 255], 32),
];

/// IPv6 networks inside 2000::/3 that are not on the public Internet, or lead to IPv4 addresses
/// that the checks would not see (IANA, IPv6 Special-Purpose Address Registry). Nothing outside
/// 2000::/3 is on the public Internet (RFC 4291, section 2.4).
const SPECIAL_V6: [([u16; 8], u8); 4] = [
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
];

/// Decides to which addresses webhooks may connect.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Networks that an operator allows beside the public Internet.
    allowed: Vec<IpNet>,
}

impl Guard {
    pub(crate) fn new(allowed: Vec<IpNet>) -> Guard {
        Guard { allowed }
    }

    fn is_allowed(&self, address: IpAddr) -> bool {
        self.allowed.iter().any(|network| network.contains(&address))
    }
}

impl CheckAddress for Guard {
    fn check(&self, address: IpAddr, is_encrypted: bool) -> Result<(), String> {
        let address = address.to_canonical();
        if self.is_allowed(address) {
            return Ok(());
        }
        if !is_public(address) {
            return Err(format!(
                "{address} is not an address on the public Internet; the operator of the server can allow its network \
                 with --webhook-allow"
            ));
        }
        if !is_encrypted {
            return Err("http:// is for networks that --webhook-allow names; use https://".into());
        }
        Ok(())
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|&(network, bits)| {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            address.to_bits() & mask == Ipv4Addr::from(network).to_bits()
        }),
        IpAddr::V6(address) => {
            let lies_in = |network: [u16; 8], bits: u8| {
                let mask = u128::MAX << (128 - u32::from(bits));
                address.to_bits() & mask == Ipv6Addr::from(network).to_bits()
            };
            lies_in([0x2000, 0, 0, 0, 0, 0, 0, 0], 3)
                && !SPECIAL_V6.iter().any(|&(network, bits)| lies_in(network, bits))
        }
    }
}

/// Checks the URL of a new webhook as far as that is possible without asking for its address.
pub(crate) fn check_url(text: &str, guard: &Guard) -> Result<(), String> {
    if text.len() > URL_LENGTH_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("up to {URL_LENGTH_MAX} visible ASCII characters"));
    }
    let uri: axum::http::Uri = text.parse().map_err(|error| format!("this is not a URL: {error}"))?;
    let host = uri.host().unwrap_or_default();
    let is_encrypted = match uri.scheme_str() {
        Some("https") => true,
        Some("http") if !guard.allowed.is_empty() => false,
        Some("http") => return Err("http:// is not allowed here; use https://".into()),
        _ => return Err("a URL such as https://hooks.example.com/sluice".into()),
    };
    if host.is_empty() {
        return Err("the URL names no host".into());
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("a URL without a user name and a password".into());
    }
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => guard.check(address, is_encrypted),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_private_networks_are_refused_in_every_spelling() {
        let guard = Guard::new(Vec::new());
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "fe80::1",
            "fc00::1",
            "fd12:3456::1",
            "ff02::1",
            "2002:7f00:1::",
            "2001:0:7f00:1::",
            "2001:db8::1",
        ] {
            let refused = guard.check(text.parse().unwrap(), true).unwrap_err();
            assert!(refused.contains("--webhook-allow"), "{text}: {refused}");
        }
        for text in
            ["1.1.1.1", "172.32.0.1", "172.15.255.255", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"]
        {
            assert_eq!(guard.check(text.parse().unwrap(), true), Ok(()), "{text}");
            assert!(guard.check(text.parse().unwrap(), false).is_err(), "{text} in plain text");
        }
    }

    #[test]
    fn an_operator_may_allow_a_network() {
        let guard = Guard::new(vec!["10.1.0.0/16".parse().unwrap(), "::1/128".parse().unwrap()]);
        for text in ["10.1.2.3", "::ffff:10.1.2.3", "::1"] {
            assert_eq!(guard.check(text.parse().unwrap(), false), Ok(()), "{text}");
        }
        assert!(guard.check("10.2.0.1".parse().unwrap(), true).is_err());
    }

    #[test]
    fn urls_are_checked_when_a_webhook_is_made() {
        let (closed, open) = (Guard::new(Vec::new()), Guard::new(vec!["127.0.0.0/8".parse().unwrap()]));
        for url in ["https://hooks.example.com/x?y=1", "https://hooks.example.com:8443"] {
            assert_eq!(check_url(url, &closed), Ok(()), "{url}");
        }
        assert_eq!(check_url("http://127.0.0.1:9/x", &open), Ok(()));
        let long = format!("https://example.com/{}", "x".repeat(URL_LENGTH_MAX));
        for url in [
            "",
            "example.com",
            "ftp://example.com/",
            "file:///etc/passwd",
            "https://",
            "https://user:secret@example.com/",
            "https://example.com/\n",
            "http://example.com/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            &long,
        ] {
            assert!(check_url(url, &closed).is_err(), "{url}");
        }
    }
}
