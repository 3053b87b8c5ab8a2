//! A plan on a recording device, under the scheduler.

use super::super::calls::{Files, carry_out, carry_out_on_files};
use super::super::observed::Observed;
use super::super::run::{fill_log, read, settle};
use super::super::step::{Slot, Step};
use super::super::volume::APART;
use super::history::{Call, Gave, History, Moment, refusal};
use super::plan::{Act, Plan};
use lanefs::{Error, Upkeep, Volume};
use lanefs_device::{BlockDevice, Result as DeviceResult, forward_to};
use lanefs_sim::RecordingDevice;
use lanefs_sync::schedule::{self, Report, calmly};
use lanefs_sync::{Mutex, thread};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A device each of whose transfers is a scheduling point.
#[derive(Debug)]
struct Scheduled(Arc<RecordingDevice>);

impl BlockDevice for Scheduled {
    forward_to!(0: size read_only);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> DeviceResult<()> {
        schedule::point();
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> DeviceResult<()> {
        schedule::point();
        self.0.write_at(data, offset)
    }
    fn flush(&self) -> DeviceResult<()> {
        schedule::point();
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> DeviceResult<()> {
        schedule::point();
        self.0.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> DeviceResult<()> {
        schedule::point();
        self.0.write_zeroes(offset, len)
    }
}

/// The shared state of a session's threads.
struct Shared {
    plan: Plan,
    /// Of a plan without a close: calls by path run beside each other.
    volume: Option<Volume>,
    /// Of a plan with one, until the volume is closed.
    closable: Mutex<Option<Volume>>,
    device: Arc<RecordingDevice>,
    files: Mutex<Files>,
    /// The same files, opened to append.
    appending: Files,
}

/// Runs a plan by `seed`. The history is there if the session ended and nothing failed but calls.
pub(super) fn run(plan: &Plan, seed: u64) -> (Report, Option<Result<History, String>>) {
    // Made once in a process: not under the scheduler, or the first run would differ from all
    // others.
    plan.setting.start();
    let outcome = Arc::new(std::sync::Mutex::new(None));
    let (plan, inside) = (plan.clone(), Arc::clone(&outcome));
    let report = schedule::run(seed, move || {
        let history = body(plan);
        *inside.lock().unwrap() = Some(history);
    });
    let history = outcome.lock().unwrap().take();
    (report, history)
}

fn body(plan: Plan) -> Result<History, String> {
    let shared = calmly(|| Shared::open(plan)).map_err(|e| format!("open: {e}"))?;
    let shared = Arc::new(shared);
    let mut calls = Vec::new();
    calmly(|| {
        for (number, step) in (1..).zip(&shared.plan.before) {
            calls.push(shared.call(0, number, &Act::Do(step.clone())));
        }
    });
    let mut number = 1 + calls.len();
    let mut threads = Vec::new();
    for (thread, acts) in (1..).zip(&shared.plan.threads) {
        let (first, acts, shared) = (number, acts.clone(), Arc::clone(&shared));
        number += acts.len();
        threads.push(thread::spawn(move || shared.work(thread, first, &acts)));
    }
    for thread in threads {
        // A panic is in the report.
        calls.extend(thread.join().map_err(|_| "a thread panicked")??);
    }
    let shared = Arc::into_inner(shared).ok_or("a thread keeps what all share")?;
    shared.end(calls)
}

impl Shared {
    fn open(plan: Plan) -> lanefs::Result<Self> {
        let device = Arc::new(RecordingDevice::new(plan.setting.start().image.clone()));
        let options = plan.setting.options().commit_interval(Duration::from_secs(5));
        let volume = options.open_device(Arc::new(Scheduled(Arc::clone(&device))))?;
        if plan.setting.pressure.full_log {
            fill_log(&volume)?;
        }
        let (mut files, mut appending) = (Files::new(), Files::new());
        for (slot, id) in &plan.setting.start().model.slots {
            if let Some(path) = plan.setting.start().model.names.path_of(*id) {
                files.insert(*slot, volume.open_options().read(true).write(true).open(path)?);
                appending.insert(*slot, volume.open_options().append(true).open(path)?);
            }
        }
        settle(&volume, &files)?;
        device.begin();
        let (volume, closable) = if plan.has_close() { (None, Some(volume)) } else { (Some(volume), None) };
        let (files, closable) = (Mutex::new(files), Mutex::new(closable));
        Ok(Self { plan, volume, closable, device, files, appending })
    }

    /// Makes a call of the volume.
    ///
    /// # Errors
    /// [`Error::Closed`]; that of the call.
    fn of_volume<T>(&self, call: impl FnOnce(&Volume) -> lanefs::Result<T>) -> lanefs::Result<T> {
        match &self.volume {
            Some(volume) => call(volume),
            None => self.closable.lock().as_ref().ok_or(Error::Closed).and_then(call),
        }
    }

    fn moment(&self) -> Moment {
        Moment { point: schedule::points(), mark: self.device.mark("") }
    }

    fn work(&self, thread: usize, first: usize, acts: &[Act]) -> Result<Vec<Call>, String> {
        let mut calls = Vec::new();
        for (number, act) in (first..).zip(acts) {
            calls.push(self.call(thread, number, act));
            let pressure = self.plan.setting.pressure;
            let tasks = [(pressure.commit, Upkeep::Commit), (pressure.sweep, Upkeep::Sweep)];
            for (_, task) in tasks.into_iter().filter(|(wanted, _)| *wanted) {
                match self.of_volume(|volume| volume.upkeep(task)).map_err(Error::into_kind) {
                    Ok(()) | Err(Error::Closed) => {}
                    Err(e) => return Err(format!("{task:?}: {e}")),
                }
            }
        }
        Ok(calls)
    }

    fn call(&self, thread: usize, number: usize, act: &Act) -> Call {
        let began = self.moment();
        // What the call drops of it is dropped by then.
        let gave = self.carry_out(number, act).unwrap_or_else(|error| refusal(&error));
        Call { thread, number, act: act.clone(), began, ended: self.moment(), gave }
    }

    fn carry_out(&self, number: usize, act: &Act) -> lanefs::Result<Gave> {
        let files = self.files.lock().clone();
        match act {
            Act::Do(Step::Append { file, len }) if self.appending.contains_key(file) => {
                let bytes = vec![super::super::model::byte(number); *len];
                self.appending[file].write_at(&bytes, 0)?;
            }
            Act::Do(step) => {
                let made = match step.is_of_files() {
                    true => carry_out_on_files(&files, number, step).map(|()| None)?,
                    false => self.of_volume(|volume| carry_out(volume, &files, number, step))?,
                };
                self.files.lock().extend(made);
            }
            Act::Read { file, at, len } => {
                let file = files.get(file).ok_or(Error::NotFound)?;
                let mut bytes = vec![0; *len];
                let n = file.read_at(&mut bytes, *at as u64)?;
                bytes.truncate(n);
                return Ok(Gave::Bytes(bytes));
            }
            Act::List(path) => {
                let entries = self.of_volume(|volume| volume.open_dir(path)?.read_dir())?;
                let names = entries.into_iter().map(|entry| entry.name.to_string_lossy().into_owned());
                let apart = |name: &String| APART.contains(&format!("/{name}").as_str());
                return Ok(Gave::Names(names.filter(|name| !apart(name)).collect()));
            }
            Act::Close => {
                let volume = self.closable.lock().take();
                volume.ok_or(Error::Closed)?.close()?;
            }
        }
        Ok(Gave::Done)
    }

    fn end(self, calls: Vec<Call>) -> Result<History, String> {
        let Self { plan: _, volume, closable, device, files, appending } = self;
        let volume = volume.or_else(|| closable.lock().take());
        let live = calmly(|| volume.as_ref().map(Observed::of).transpose())?;
        let content = |(slot, file): (&Slot, &lanefs::File)| match read(file) {
            Ok(bytes) => Ok((*slot, bytes)),
            Err(e) => Err(format!("{slot}: {e}")),
        };
        let slots: BTreeMap<Slot, Vec<u8>> =
            calmly(|| files.lock().iter().map(content).collect::<Result<_, _>>())?;
        drop((files, appending));
        volume.map_or(Ok(()), Volume::close).map_err(|e| format!("close: {e}"))?;
        let end = device.mark("");
        Ok(History { calls, live, slots, log: device.log(), closed: device.image(), end })
    }
}
