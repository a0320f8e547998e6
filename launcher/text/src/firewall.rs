//! Shell commands that open ports on a host whose packet filter is unknown.

/// Returns the line that lets packets to ports in, from one address or network, or from all. The rule goes to nft's usual
/// chain and to that of iptables: what one of them accepts, the other may still drop. A host without nft's chain is usual,
/// so an error about it would only look like one of the line. A port is a range with two equal ends.
pub fn admission(source: Option<&str>, protocol: &str, (first, last): (u16, u16)) -> String {
    let is_ipv6 = source.is_some_and(|source| source.contains(':'));
    let (family, iptables) = if is_ipv6 { ("ip6", "ip6tables") } else { ("ip", "iptables") };
    let (from, of_iptables) = match source {
        Some(source) => (format!("{family} saddr {source} "), format!("-s {source} ")),
        None => (String::new(), String::new()),
    };
    let ports = |between: &str| {
        if first == last { first.to_string() } else { format!("{first}{between}{last}") }
    };
    format!(
        "nft insert rule inet filter input {from}{protocol} dport {} accept 2>/dev/null; \
         {iptables} -I INPUT {of_iptables}-p {protocol} --dport {} -j ACCEPT",
        ports("-"),
        ports(":")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_has_its_own_spelling() {
        let nft = "nft insert rule inet filter input";
        assert_eq!(
            admission(Some("10.1.0.2"), "tcp", (21007, 21007)),
            format!(
                "{nft} ip saddr 10.1.0.2 tcp dport 21007 accept 2>/dev/null; iptables -I INPUT \
                 -s 10.1.0.2 -p tcp --dport 21007 -j ACCEPT"
            )
        );
        assert_eq!(
            admission(None, "tcp", (1, 9)),
            format!(
                "{nft} tcp dport 1-9 accept 2>/dev/null; iptables -I INPUT -p tcp --dport 1:9 -j \
                 ACCEPT"
            )
        );
        let link_local = admission(Some("fe80::/10"), "udp", (7, 7));
        assert!(
            link_local.contains(" ip6 saddr fe80::/10 udp ") && link_local.contains("; ip6tables ")
        );
    }
}
