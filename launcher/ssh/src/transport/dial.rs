//! TCP connections to a host: looks the host's name up and tries its addresses in turn.

use crate::config::{AddressFamily, HostConfig};
use crate::error::SshError;
use rlaunch_console::open_files;
use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::net::{TcpSocket, TcpStream};

/// Tries the addresses of a host in turn, and returns the first connection that is accepted, with its
/// address.
pub(crate) async fn dial(
    config: &HostConfig,
    port: u16,
) -> Result<(TcpStream, SocketAddr), SshError> {
    let addresses = look_up(config, port).await?;
    let from = match &config.bind_address {
        Some(name) => Some((name, own_addresses(name).await?)),
        None => None,
    };
    let mut refused = None;
    for address in addresses {
        let connected = match &from {
            None => TcpStream::connect(address).await,
            Some((name, own)) => {
                let own = own.iter().find(|own| own.is_ipv4() == address.is_ipv4());
                let Some(&own) = own else { continue };
                let bound = bind(own).map_err(|source| cannot_bind(name, source))?;
                bound.connect(address).await
            }
        };
        match connected {
            Ok(stream) => {
                // Otherwise Nagle's algorithm would delay parts of the handshake by 40 ms, twice.
                stream.set_nodelay(true).map_err(SshError::Socket)?;
                return Ok((stream, address));
            }
            Err(source) => refused = Some(SshError::Connect { address, source }),
        }
    }
    Err(refused.unwrap_or(SshError::NoAddress { name: config.hostname.clone() }))
}

/// Looks up the addresses of a host, in the system's order of preference.
async fn look_up(config: &HostConfig, port: u16) -> Result<Vec<SocketAddr>, SshError> {
    let name = &config.hostname;
    let wanted = |address: &SocketAddr| match config.address_family {
        AddressFamily::Any => true,
        AddressFamily::Inet => address.is_ipv4(),
        AddressFamily::Inet6 => address.is_ipv6(),
    };
    let addresses: Vec<SocketAddr> = match name.parse::<IpAddr>() {
        Ok(literal) => vec![SocketAddr::new(literal, port)],
        Err(_) => tokio::net::lookup_host((name.as_str(), port))
            .await
            .map_err(open_files::cause)
            .map_err(|source| SshError::LookUp { name: name.clone(), source })?
            .filter(wanted)
            .collect(),
    };
    if addresses.is_empty() {
        return Err(SshError::NoAddress { name: name.clone() });
    }
    Ok(addresses)
}

/// Returns the addresses of this machine that `BindAddress` names.
async fn own_addresses(name: &str) -> Result<Vec<IpAddr>, SshError> {
    if let Ok(literal) = name.parse() {
        return Ok(vec![literal]);
    }
    let found = tokio::net::lookup_host((name, 0)).await;
    let found = found.map_err(|source| cannot_bind(name, source))?;
    Ok(found.map(|address| address.ip()).collect())
}

fn cannot_bind(name: &str, source: io::Error) -> SshError {
    SshError::Bind { name: name.to_owned(), source }
}

fn bind(own: IpAddr) -> io::Result<TcpSocket> {
    let socket = if own.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(SocketAddr::new(own, 0))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(from: &str) -> HostConfig {
        HostConfig {
            hostname: "127.0.0.1".into(),
            bind_address: Some(from.into()),
            ..HostConfig::default()
        }
    }

    #[tokio::test]
    async fn the_connection_comes_from_the_address_that_was_asked_for() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (_stream, address) = dial(&config("127.0.0.7"), port).await.unwrap();
        assert_eq!(address.port(), port);
        assert_eq!(listener.accept().await.unwrap().1.ip().to_string(), "127.0.0.7");
        // First an address that this machine does not have, then one of the wrong address family.
        let error = dial(&config("192.0.2.1"), port).await.unwrap_err();
        assert!(matches!(error, SshError::Bind { .. }), "{error}");
        let error = dial(&config("::1"), port).await.unwrap_err();
        assert!(matches!(error, SshError::NoAddress { .. }), "{error}");
    }
}
