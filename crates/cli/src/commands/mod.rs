//! One file a command. Each has its arguments (`Args`) and `run`.

mod build;
mod burst;
mod cat;
mod check;
mod chmod;
mod chown;
mod commit;
mod cp;
mod df;
mod diff;
mod du;
mod export;
mod fallocate;
pub(crate) mod find;
mod frag;
mod fstrim;
mod fsverity;
mod import;
mod info;
#[cfg(feature = "lab")]
mod lab;
#[cfg(not(feature = "lab"))]
#[path = "no_lab.rs"]
mod lab;
mod label;
mod ln;
mod ls;
mod manual;
mod mkdir;
mod mkfs;
mod mknod;
mod mmp;
mod mount;
mod mv;
mod pages;
mod readlink;
mod recover;
mod resize;
mod rm;
mod run;
mod source;
mod stat;
mod top;
mod touch;
mod transfer;
mod tree;
mod truncate;
mod tune;
mod umount;
mod verity;
mod xattr;
mod zero_free;

pub(crate) use mount::MountHelper;
pub(crate) use umount::UmountHelper;

use crate::failure::Res;
use crate::output::Out;
use transfer::off_main;

/// The commands, in the order of the help.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Mkfs(mkfs::Args),
    Build(build::Args),
    Info(info::Args),
    Df(df::Args),
    Label(label::Args),
    Tune(tune::Args),
    Frag(frag::Args),
    Recover(recover::Args),
    Check(check::Args),
    Resize(resize::Args),
    Fstrim(fstrim::Args),
    ZeroFree(zero_free::Args),
    Commit(commit::Args),
    Verity(verity::Args),
    Mmp(mmp::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Run(run::Args),
    Top(top::Args),
    Import(import::Args),
    Export(export::Args),
    Ls(ls::Args),
    Tree(tree::Args),
    Find(find::Args),
    Du(du::Args),
    Diff(diff::Args),
    Stat(stat::Args),
    Readlink(readlink::Args),
    Cat(cat::Args),
    Cp(cp::Args),
    Mv(mv::Args),
    Rm(rm::Args),
    Mkdir(mkdir::Args),
    Touch(touch::Args),
    Truncate(truncate::Args),
    Ln(ln::Args),
    Mknod(mknod::Args),
    Fallocate(fallocate::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Xattr(xattr::Args),
    Lab(lab::Args),
    #[command(hide = true)]
    Burst(burst::Args),
    #[command(hide = true)]
    Pages(pages::Args),
}

impl Command {
    /// Runs the command; what it wrote is out when this returns without a failure.
    pub(crate) fn run(self) -> Res {
        let mut out = Out::new();
        match self {
            Self::Mkfs(args) => args.run(&mut out)?,
            Self::Build(args) => off_main(|| args.run(&mut out))?,
            Self::Info(args) => args.run(&mut out)?,
            Self::Df(args) => args.run(&mut out)?,
            Self::Label(args) => args.run(&mut out)?,
            Self::Tune(args) => args.run()?,
            Self::Find(args) => args.run(&mut out)?,
            Self::Du(args) => args.run(&mut out)?,
            Self::Diff(args) => args.run(&mut out)?,
            Self::Readlink(args) => args.run(&mut out)?,
            Self::Touch(args) => args.run()?,
            Self::Truncate(args) => args.run()?,
            Self::Frag(args) => args.run(&mut out)?,
            Self::Recover(args) => args.run(&mut out)?,
            Self::Resize(args) => args.run(&mut out)?,
            Self::Check(args) => args.run(&mut out)?,
            Self::Fstrim(args) => args.run(&mut out)?,
            Self::ZeroFree(args) => args.run(&mut out)?,
            Self::Commit(args) => args.run(&mut out)?,
            Self::Mount(args) => args.run()?,
            Self::Umount(args) => args.run()?,
            Self::Run(args) => args.run()?,
            Self::Top(args) => args.run(&mut out)?,
            Self::Ls(args) => args.run(&mut out)?,
            Self::Tree(args) => args.run(&mut out)?,
            Self::Stat(args) => args.run(&mut out)?,
            Self::Cat(args) => args.run(&mut out)?,
            Self::Cp(args) => args.run(&mut out)?,
            Self::Mv(args) => args.run(&mut out)?,
            Self::Rm(args) => args.run(&mut out)?,
            Self::Mkdir(args) => args.run(&mut out)?,
            Self::Ln(args) => args.run(&mut out)?,
            Self::Mknod(args) => args.run()?,
            Self::Fallocate(args) => args.run()?,
            Self::Chmod(args) => args.run(&mut out)?,
            Self::Chown(args) => args.run(&mut out)?,
            Self::Xattr(args) => args.run(&mut out)?,
            Self::Lab(args) => args.run(&mut out)?,
            Self::Import(args) => off_main(|| args.run(&mut out))?,
            Self::Export(args) => off_main(|| args.run(&mut out))?,
            Self::Burst(args) => args.run(&mut out)?,
            Self::Pages(args) => args.run()?,
            Self::Verity(args) => args.run(&mut out)?,
            Self::Mmp(args) => args.run(&mut out)?,
        }
        out.finish()
    }
}
