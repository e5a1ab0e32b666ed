//! The least that speaks HTTP: what measures should cost little beside what it measures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A connection that stays.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// `url` is `http://HOST:PORT`.
    pub(crate) fn open(url: &str) -> Result<Connection> {
        let stream = TcpStream::connect(url.strip_prefix("http://").context("an http URL")?)?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    pub(crate) fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        token: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        self.ask("POST", path, token, &serde_json::to_vec(body)?)
    }

    pub(crate) fn delete<T: DeserializeOwned>(&mut self, path: &str, token: &str) -> Result<T> {
        self.ask("DELETE", path, token, &[])
    }

    fn ask<T: DeserializeOwned>(&mut self, method: &str, path: &str, token: &str, body: &[u8]) -> Result<T> {
        let mut request = format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: load\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        let (status, answer) = self.answer()?;
        if status != 200 {
            bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&answer));
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    fn answer(&mut self) -> Result<(u16, Vec<u8>)> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no answer: {line:?}"))?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let lower = line.trim().to_ascii_lowercase();
            match lower.split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse()?,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, body))
    }
}
