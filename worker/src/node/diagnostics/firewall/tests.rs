//! Recorded output of the programs.

use super::*;
use rlaunch_bootstrap::inventory::diagnostics::{FilterProtocol, FirewallRule};

/// firewalld 1.3 in a zone that accepts SSH, shortened.
const FIREWALLD: &str = "\
table inet firewalld { # handle 2
\tct helper helper-netbios-ns-udp { # handle 9
\t\ttype \"netbios-ns\" protocol udp
\t}

\tchain mangle_PREROUTING { # handle 1
\t\ttype filter hook prerouting priority mangle + 10; policy accept;
\t\tjump mangle_PREROUTING_ZONES # handle 17
\t}

\tchain filter_INPUT { # handle 152
\t\ttype filter hook input priority filter + 10; policy accept;
\t\tct state { established, related } accept # handle 161
\t\tct status dnat accept # handle 162
\t\tiifname \"lo\" accept # handle 163
\t\tct state invalid drop # handle 164
\t\tjump filter_INPUT_ZONES # handle 165
\t\treject with icmpx admin-prohibited # handle 166
\t}

\tchain filter_OUTPUT { # handle 154
\t\ttype filter hook output priority filter + 10; policy accept;
\t\tct state { established, related } accept # handle 174
\t\toifname \"lo\" accept # handle 175
\t}

\tchain filter_INPUT_ZONES { # handle 156
\t\tiifname \"eth0\" goto filter_IN_public # handle 190
\t\tgoto filter_IN_public # handle 191
\t}

\tchain filter_IN_public { # handle 179
\t\tjump filter_IN_public_allow # handle 187
\t\tmeta l4proto { icmp, ipv6-icmp } accept # handle 197
\t\treject with icmpx admin-prohibited # handle 198
\t}

\tchain filter_IN_public_allow { # handle 183
\t\ttcp dport 22 accept # handle 195
\t\tip6 daddr fe80::/64 udp dport 546 accept # handle 196
\t}

\tchain unused { # handle 200
\t\tdrop # handle 201
\t}
}
";

fn short(rule: &FirewallRule) -> String {
    let verdict = if rule.accepts { "accept" } else { "drop" };
    let ports: Vec<String> = rule.ports.iter().map(|(a, b)| format!("{a}-{b}")).collect();
    let protocol = rule.protocol.map(|protocol| format!("{protocol:?} ")).unwrap_or_default();
    let interface = rule.interface.iter().map(|name| format!("{name} ")).collect::<String>();
    let others = if rule.has_other_conditions { " ?" } else { "" };
    let side = if rule.is_input { "" } else { "out " };
    let ports = if ports.is_empty() { String::new() } else { format!("{} ", ports.join(",")) };
    format!("{side}{interface}{protocol}{ports}{verdict}{others}")
}

fn shorts(firewall: &Firewall) -> Vec<String> {
    firewall.rules.iter().map(short).collect()
}

#[test]
fn the_rules_of_firewalld_are_followed() {
    let text = format!("{NFT}\n{}", nft::keep_relevant(FIREWALLD));
    assert!(!text.contains("unused") && !text.contains("mangle") && !text.contains("netbios"));
    let firewall = parse(&text);
    assert_eq!((firewall.read_by.as_str(), firewall.drops_by_default), ("nft", false));
    let wanted = [
        "accept ?", "accept ?", "lo accept", "drop ?", "eth0 Tcp 22-22 accept", "eth0 Icmp accept",
        "eth0 drop", "Tcp 22-22 accept", "Icmp accept", "drop", "out accept ?", "out lo accept",
    ];
    assert_eq!(shorts(&firewall), wanted);
    let ssh = &firewall.rules[4];
    assert_eq!(ssh.chain, "inet firewalld filter_IN_public_allow");
    assert_eq!(ssh.text, "tcp dport 22 accept");
    // The whole output says the same as its part that is recorded.
    assert_eq!(parse(&format!("{NFT}\n{FIREWALLD}")), firewall);
}

fn input(rules: &str) -> Firewall {
    let lines: String = rules.lines().map(|line| format!("\t\t{line}\n")).collect();
    let table = format!("table inet filter {{\n\tchain input {{\n{lines}\t}}\n}}\n");
    parse(&format!("{NFT}\n{}", nft::keep_relevant(&table)))
}

#[test]
fn conditions_of_nft_are_read() {
    let firewall = input(
        "type filter hook input priority filter; policy drop;\n\
         comment \"a chain that accepts\"\n\
         ct state vmap { established : accept, related : accept, invalid : drop }\n\
         tcp dport { 22, 80-90, 443 } counter packets 5 bytes 9 accept\n\
         tcp dport @open accept\n\
         tcp dport != 22 drop\n\
         udp sport 67 udp dport 68 accept\n\
         meta l4proto { tcp, udp } th dport 53 accept\n\
         iifname { \"lo\", \"ib0\" } accept comment \"drop\"\n\
         ip protocol icmp accept\n\
         ip saddr 10.0.0.0/8 accept\n\
         ip6 nexthdr ipv6-icmp accept\n\
         meta nfproto ipv6 drop\n\
         log prefix \"accept: \" level info\n\
         limit rate 5/second accept\n\
         counter\n\
         reject with tcp reset # handle 12\n\
         tcp dport 99 accept",
    );
    let wanted = [
        "accept ?", "drop ?", "Tcp 22-22,80-90,443-443 accept", "Tcp accept ?", "Tcp drop ?",
        "Udp 68-68 accept ?", "Tcp 53-53 accept", "Udp 53-53 accept", "lo accept", "ib0 accept",
        "Icmp accept", "accept ?", "accept ?", "drop",
    ];
    assert_eq!(shorts(&firewall), wanted);
    assert!(firewall.drops_by_default);
    assert_eq!(firewall.chain, "inet filter input");
}

#[test]
fn other_tables_and_hooks_do_not_matter() {
    for table in [
        "table ip6 filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy drop;\n\t}\n}\n",
        "table ip nat {\n\tchain x {\n\t\ttype nat hook input priority 0; policy drop;\n\t\tdrop\n\t}\n}\n",
        "table bridge f {\n\tchain x {\n\t\ttype filter hook input priority 0;\n\t\tdrop\n\t}\n}\n",
        "table inet f {\n\tchain x {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\n",
        "",
    ] {
        let firewall = parse(&format!("{NFT}\n{}", nft::keep_relevant(table)));
        assert_eq!(firewall, Firewall { read_by: "nft".into(), ..Firewall::default() }, "{table}");
    }
    let output =
        "table ip f {\n\tchain o {\n\t\ttype filter hook output priority 0; policy drop;\n\t}\n}\n";
    assert_eq!(shorts(&parse(&format!("{NFT}\n{output}"))), ["out drop"]);
}

/// ufw as Ubuntu sets it up, shortened, with nft's view of the same tables before it.
const UFW: &str = "\
# nft
table ip filter {
\tchain INPUT {
\t\ttype filter hook input priority filter; policy drop;
\t\tcounter packets 1 bytes 2 jump ufw-before-input
\t\txt match \"comment\" drop
\t}
}
table inet other {
\tchain in {
\t\ttype filter hook input priority 5; policy accept;
\t\ttcp dport 111 drop # handle 5
\t}
}

# iptables
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-input - [0:0]
:ufw-not-local - [0:0]
:ufw-user-input - [0:0]
:ufw-reject-input - [0:0]
-A INPUT -j ufw-before-input
-A INPUT -j ufw-reject-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -j ufw-user-input
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix \"[UFW BLOCK] \"
-A ufw-not-local -j DROP
-A ufw-user-input -p tcp -m tcp --dport 22 -m comment --comment \"the -j DROP of ssh\" -j ACCEPT
-A ufw-user-input -p udp -m multiport --dports 60000:61000,5353 -j ACCEPT
-A ufw-user-input ! -i eth0 -p tcp -j ACCEPT
-A ufw-user-input -s 10.0.0.0/8 -j ACCEPT
-A ufw-user-input -p tcp -j CUSTOM
COMMIT
";

#[test]
fn the_rules_of_ufw_are_followed() {
    let firewall = parse(UFW);
    let wanted = [
        "lo accept", "accept ?", "drop ?", "Icmp accept ?", "drop ?", "Tcp 22-22 accept",
        "Udp 60000-61000,5353-5353 accept", "Tcp accept ?", "accept ?", "Tcp accept ?",
        "Tcp drop ?", "Tcp 111-111 drop",
    ];
    assert_eq!(shorts(&firewall), wanted);
    assert!(firewall.drops_by_default);
    assert_eq!((firewall.chain.as_str(), firewall.read_by.as_str()), ("INPUT", "nft"));
    assert_eq!(firewall.rules[5].chain, "ufw-user-input");
    let iptables = parse(&UFW[UFW.find(IPTABLES).unwrap()..]);
    assert_eq!((iptables.read_by.as_str(), iptables.rules.len()), ("iptables", wanted.len() - 1));
}

/// Packets meet base chains in order of priority, whatever the order in which they are printed.
#[test]
fn base_chains_are_in_order_of_priority() {
    let chain = |name: &str, priority: &str, policy: &str, rule: &str| {
        format!(
            "table inet {name} {{\n\tchain input {{\n\t\ttype filter hook input priority {priority}; \
             policy {policy};\n\t\t{rule}\n\t}}\n}}\n"
        )
    };
    let text = [
        chain("late", "filter + 10", "drop", "tcp dport 4 accept"),
        chain("number", "-5", "drop", "tcp dport 3 accept"),
        chain("early", "mangle - 5", "accept", "tcp dport 1 accept"),
        chain("named", "mangle", "accept", "tcp dport 2 accept"),
    ];
    let firewall = parse(&format!("{NFT}\n{}", nft::keep_relevant(&text.concat())));
    let wanted = ["Tcp 1-1 accept", "Tcp 2-2 accept", "Tcp 3-3 accept", "Tcp 4-4 accept", "drop"];
    assert_eq!(shorts(&firewall), wanted);
    let bases: Vec<u32> = firewall.rules.iter().map(|rule| rule.base).collect();
    assert_eq!(bases, [0, 1, 2, 3, 3]);
    let default = (firewall.drops_by_default, firewall.chain.as_str(), firewall.base);
    assert_eq!(default, (true, "inet number input", 2));
}

/// Both kinds of iptables may have rules at once, and the kernel asks both.
#[test]
fn both_kinds_of_iptables_have_their_own_chains() {
    let table = |rule: &str| format!("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT {rule}\nCOMMIT\n");
    let text = [table("-p tcp -j ACCEPT"), table("-p tcp -j DROP")].concat();
    let firewall = parse(&format!("{IPTABLES}\n{text}"));
    assert_eq!(shorts(&firewall), ["Tcp accept", "Tcp drop"]);
    assert_ne!(firewall.rules[0].base, firewall.rules[1].base);
}

/// A packet that begins a connection is new, and has SYN alone.
#[test]
fn conditions_that_begin_a_connection_are_understood() {
    let firewall = input(
        "type filter hook input priority filter; policy accept;\n\
         ct state new tcp dport 1024-65535 drop\n\
         tcp flags syn / fin,syn,rst,ack drop\n\
         tcp flags & (fin | syn | rst | ack) == syn counter drop\n\
         tcp flags ack drop\n\
         ct status dnat accept\n\
         ct state { established, new } accept",
    );
    let wanted =
        ["Tcp 1024-65535 drop", "Tcp drop", "Tcp drop", "Tcp drop ?", "accept ?", "accept"];
    assert_eq!(shorts(&firewall), wanted);
    let text = format!(
        "{IPTABLES}\n*filter\n:INPUT ACCEPT [0:0]\n\
         -A INPUT -p tcp -m tcp --dport 1024:65535 --tcp-flags FIN,SYN,RST,ACK SYN -j DROP\n\
         -A INPUT -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP\n\
         -A INPUT -p udp -m conntrack --ctstate NEW,RELATED -j DROP\n\
         -A INPUT -m state --state ESTABLISHED -j ACCEPT\nCOMMIT\n"
    );
    let wanted = ["Tcp 1024-65535 drop", "Tcp drop ?", "Udp drop", "accept ?"];
    assert_eq!(shorts(&parse(&text)), wanted);
}

/// Without `iptables-save`, nft's view is better than none.
#[test]
fn tables_of_iptables_are_read_by_nft_if_need_be() {
    let firewall = parse(&UFW[..UFW.find(IPTABLES).unwrap()]);
    assert!(nft::has_tables_of_iptables(UFW) && !nft::has_tables_of_iptables(FIREWALLD));
    assert!(firewall.drops_by_default);
    assert_eq!(shorts(&firewall), ["accept ?", "drop ?", "drop ?", "Tcp 111-111 drop"]);
}

#[test]
fn chains_that_jump_in_circles_end() {
    let mut text = String::from("*filter\n:INPUT ACCEPT [0:0]\n:A - [0:0]\n:B - [0:0]\n");
    text += "-A INPUT -j A\n";
    for _ in 0..3 {
        text += "-A A -j B\n-A B -j A\n-A A -p tcp -j DROP\n";
    }
    let firewall = parse(&format!("{IPTABLES}\n{text}"));
    assert!(firewall.rules.len() <= 1000 && !firewall.drops_by_default);
}

#[test]
fn cut_output_is_read() {
    for text in [UFW, FIREWALLD] {
        for length in (0..text.len()).step_by(7) {
            parse(&text[..length]);
            parse(&format!("{NFT}\n{}", nft::keep_relevant(&text[..length])));
        }
    }
    assert_eq!(parse(""), Firewall::default());
}

#[test]
fn protocols_have_names_and_numbers() {
    assert_eq!(parse_protocol("17"), Some(FilterProtocol::Udp));
    assert_eq!(parse_protocol("ipv6-icmp"), None);
    assert_eq!(port_range("5-x", '-'), None);
}
