package disktest

// DebianGrub is a grub.cfg as Debian generates it.
const DebianGrub = `# DO NOT EDIT
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
else
   set default="0"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
export menuentry_id_option
function load_video {
  if [ x$feature_all_video_module = xy ]; then
    insmod all_video
  fi
}
set linux_gfx_mode=auto
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-1' {
	load_video
	insmod gzio
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --fs-uuid --set=root 1
	echo	'Loading Linux 6.1.0 ...'
	linux	/boot/vmlinuz-6.1.0 root=UUID=1 ro  quiet "dyndbg=file a.c +p" ${unset}
	echo	'Loading initial ramdisk ...'
	initrd	/boot/intel-ucode.img /boot/initrd.img-6.1.0
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1' {
	menuentry 'Debian GNU/Linux, with Linux 6.1.0' --class debian $menuentry_id_option 'gnulinux-6.1.0-advanced-1' {
		linux	/boot/vmlinuz-6.1.0 root=UUID=1 ro advanced
		initrd	/boot/initrd.img-6.1.0
	}
	menuentry 'Debian GNU/Linux, with Linux 5.10.0' $menuentry_id_option 'gnulinux-5.10.0-advanced-1' {
		linux	/boot/vmlinuz-5.10.0 root=UUID=1 ro
	}
}
menuentry 'Windows' {
	chainloader +1
}
`
