/** Why a file or directory with this owner and mode may contain what somebody else wrote; `undefined` if it may not. */
export function distrust(
  { uid, gid, mode }: { readonly uid: number; readonly gid: number; readonly mode: number },
  user: number,
): { readonly what: string; readonly command: string } | undefined {
  if (uid !== user && uid !== 0)
    return { what: `belongs to the user ${uid}, not to this one (${user}) or root`, command: `chown ${user}` }
  if ((mode & 0o002) !== 0) return { what: 'can be written by everybody', command: 'chmod go-w' }
  // Where every user has a group of their own, which has the same number, editors and git create files that it can write.
  const isPrivateGroup = gid === uid && uid !== 0
  if ((mode & 0o020) !== 0 && !isPrivateGroup)
    return { what: `can be written by the group ${gid}`, command: 'chmod go-w' }
  return undefined
}
