// Without fonts: the site uses those of the reader's system, and loads nothing from other hosts.
export { default } from 'vitepress/theme-without-fonts'
// oxlint-disable-next-line import/no-unassigned-import -- a style sheet has nothing to assign
import './style.css'
