// Without fonts: the site uses those of the reader's system, and loads nothing from other hosts.
export { default } from 'vitepress/theme-without-fonts'
import './style.css'
