//! The connections to an export, made and agreed on, and made again when they are lost.

use super::error::NbdError;
use super::handshake::{Agreed, Handshake, NbdExport};
use super::job::Job;
use super::link::{Link, Sent};
use super::socket::Socket;
use super::table::Terms;
use super::url::NbdUrl;
use super::wire::ExportFlags;
use std::time::Duration;

/// The most requests of one thread on each of several connections.
const SHARE: usize = 64;

/// Connections that serve at the same time.
#[derive(Debug)]
pub(crate) struct Session {
    /// How many there were before.
    pub(crate) generation: u64,
    links: Vec<Link>,
}

/// Jobs that were sent on one of the connections.
#[must_use]
pub(crate) struct SentOn {
    link: usize,
    sent: Sent,
}

/// What it takes to connect.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) url: NbdUrl,
    pub(crate) read_only: bool,
    #[cfg(feature = "tls")]
    tls: Option<super::tls::TlsSettings>,
}

impl Connector {
    /// Reads what TLS needs, as later there may be no right to.
    ///
    /// # Errors
    /// Certificates that cannot be read.
    pub(crate) fn new(url: NbdUrl, read_only: bool) -> Result<Self, NbdError> {
        #[cfg(feature = "tls")]
        {
            let tls = if url.tls { Some(super::tls::TlsSettings::new(&url)?) } else { None };
            Ok(Self { url, read_only, tls })
        }
        #[cfg(not(feature = "tls"))]
        match url.tls {
            true => Err(NbdError::Tls { why: "this build of lanefs has none (the feature tls)".into() }),
            false => Ok(Self { url, read_only }),
        }
    }

    /// Connects, with TLS if that is wanted, and leaves off where options are negotiated.
    fn negotiate<T>(
        &self,
        timeout: Duration,
        go_on: impl FnOnce(Handshake<'_, &Socket>) -> Result<T, NbdError>,
    ) -> Result<(Socket, T), NbdError> {
        let socket = Socket::dial(&self.url.address, timeout)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let no_zeroes = Handshake::begin(&mut &socket, timeout)?.start_tls()?;
            let socket = socket.upgrade(tls, timeout)?;
            let done = go_on(Handshake::after_tls(&mut &socket, timeout, no_zeroes))?;
            return Ok((socket, done));
        }
        let done = go_on(Handshake::begin(&mut &socket, timeout)?)?;
        Ok((socket, done))
    }

    /// Opens the export, by as many connections as wanted and allowed.
    ///
    /// # Errors
    /// A loss, as [`NbdError::Further`] behind the first connection; what the server refuses, or
    /// gets wrong.
    pub(crate) fn open(&self, generation: u64, timeout: Duration) -> Result<(Session, Agreed), NbdError> {
        let export = self.url.export_name();
        let (socket, agreed) = self.negotiate(timeout, |handshake| handshake.open(export))?;
        let mut links = vec![Link::new(socket, self.terms(&agreed))];
        // Where a flush covers one connection alone, there is one.
        let wanted = if agreed.flags.has(ExportFlags::MULTI_CONN) { self.url.connections } else { 1 };
        while links.len() < wanted {
            let number = links.len() + 1;
            let further = |why: NbdError| match why.is_loss() {
                true => NbdError::Further { number, wanted, why: Box::new(why) },
                false => why,
            };
            let opened = self.negotiate(timeout, |handshake| handshake.open(export));
            let (socket, other) = opened.map_err(further)?;
            self.check_same(&agreed, &other)?;
            links.push(Link::new(socket, self.terms(&other)));
        }
        Ok((Session { generation, links }, agreed))
    }

    /// Returns the terms of a connection on which this was agreed.
    fn terms(&self, agreed: &Agreed) -> Terms {
        let Agreed { flags, structured, allocation, .. } = *agreed;
        Terms { structured, allocation, flags, timeout: self.url.timeout }
    }

    /// Returns the exports that the server lists, `None` if it lists none to this client.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn list(&self) -> Result<Option<Vec<NbdExport>>, NbdError> {
        let listed = self.negotiate(self.url.timeout, |mut handshake| handshake.list_with_sizes())?;
        Ok(listed.1)
    }

    /// Checks that an export is what it was: that it holds the volume, and does what was relied on.
    /// Writes of zeros, TRIM and block status may come and go: see [`Terms`].
    ///
    /// # Errors
    /// [`NbdError::SizeChanged`], [`NbdError::Changed`].
    pub(crate) fn check_same(&self, was: &Agreed, is: &Agreed) -> Result<(), NbdError> {
        if is.size < was.size {
            return Err(NbdError::SizeChanged { was: was.size, is: is.size });
        }
        let lost = |flag| !self.read_only && was.flags.has(flag) && !is.flags.has(flag);
        let what = match () {
            () if !self.read_only && is.flags.has(ExportFlags::READ_ONLY) => "it can be read only",
            () if lost(ExportFlags::FLUSH) => "it has no flush",
            () if lost(ExportFlags::FUA) && !was.flags.has(ExportFlags::FLUSH) => "it has no FUA",
            () if is.min_block > was.min_block => "its block is larger",
            () if is.max_block < was.max_block => "its requests have to be smaller",
            () => return Ok(()),
        };
        Err(NbdError::Changed { what })
    }
}

impl Session {
    /// Runs jobs on the connections: a few on the one that has the least to do, many on all.
    ///
    /// # Errors
    /// As [`Link::run`].
    pub(crate) fn run(&self, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let (count, next) = (self.links.len(), self.least_busy());
        if count == 1 || jobs.len() < count {
            return self.links[next].run(jobs);
        }
        // What a connection takes at a time is not more than what it takes from one thread.
        let mut rest = jobs;
        while !rest.is_empty() {
            let (now, later) = rest.split_at_mut(rest.len().min(count * SHARE));
            let share = now.len().div_ceil(count);
            let mut sent = Vec::with_capacity(count);
            for (i, jobs) in now.chunks_mut(share).enumerate() {
                let link = &self.links[(next + i) % count];
                let waiter = link.send_out(jobs)?;
                sent.push((link, waiter, jobs));
            }
            for (link, waiter, jobs) in sent {
                link.wait_for(waiter, jobs)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Returns the connection that has the least to do.
    fn least_busy(&self) -> usize {
        // The first of several: a lone thread always has the same, whose server is warm.
        let least = self.links.iter().enumerate().min_by_key(|(_, link)| link.in_flight());
        least.map_or(0, |(at, _)| at)
    }

    /// Sends jobs on the connection that has the least to do, for [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// As [`Link::run`].
    pub(crate) fn send_out(&self, jobs: &[Job<'_>]) -> Result<SentOn, NbdError> {
        let link = self.least_busy();
        Ok(SentOn { link, sent: self.links[link].send_out(jobs)? })
    }

    /// Goes on sending what the sockets have not taken yet.
    ///
    /// # Errors
    /// As [`Link::run`].
    pub(crate) fn push(&self) -> Result<(), NbdError> {
        self.links.iter().try_for_each(Link::push)
    }

    /// Waits for jobs that were sent.
    ///
    /// # Errors
    /// As [`Link::run`].
    pub(crate) fn wait_for(&self, sent: SentOn, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        self.links[sent.link].wait_for(sent.sent, jobs)
    }

    /// Ends all connections for this reason.
    pub(crate) fn end(&self, why: &NbdError) {
        self.links.iter().for_each(|link| drop(link.end(why.clone())));
    }

    /// Says goodbye.
    pub(crate) fn disconnect(&self) {
        self.links.iter().for_each(Link::disconnect);
    }
}
